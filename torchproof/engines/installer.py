"""What installing a lock's wheels needs besides the wheels: indexes, and words for what went wrong.

Every file is pinned by hash, so it does not matter which index delivers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from torchproof._http import redact
from torchproof.errors import (
    CellError,
    HostError,
    IndexUnreachableError,
    IntegrityError,
    TorchproofError,
)
from torchproof.index.indexes import Indexes
from torchproof.index.simple_api import TIMEOUT, fetch_page
from torchproof.index.uv import NETWORK_TROUBLE, configured_index, environment
from torchproof.model.lock import PYPI, WHEELHOUSE, Lock
from torchproof.registry.reference import is_loopback

_CA_FILES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_SYSTEM_CA = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_HASH = re.compile(r"[Hh]ash mismatch|DO NOT MATCH THE HASHES")
_BROKEN = re.compile(
    r"[Ff]ailed to (extract|unpack|read|unzip)|central directory|[Uu]nexpected end of file|"
    r"premature end|invalid Zip archive|[Cc]orrupt|BadZipFile|unexpected EOF",
)
_GONE = re.compile(r"No solution found|No matching distribution|not found in the package registry")
_FULL = re.compile(r"[Nn]o space left on device|os error 28|ENOSPC")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexUrls:
    """Where an installer looks. `default` is None for the index that is built into pip and uv."""

    default: str | None
    named: tuple[str, ...] = ()

    @property
    def loopback(self) -> bool:
        """Whether one of them can only be reached from this very machine."""
        urls = [url for url in (self.default, *self.named) if url]
        hosts = [re.match(r"\w+://(?:[^/@]*@)?([^/?#]+)", url) for url in urls]
        return any(is_loopback(host[1]) for host in hosts if host)


def index_urls(lock: Lock, indexes: Indexes) -> IndexUrls:
    """Return the indexes of a lock's wheels. Raises InputError for an unknown alias."""
    aliases = sorted({wheel.index for wheel in lock.wheels} - {PYPI, WHEELHOUSE})
    named = tuple(url for alias in aliases if (url := indexes.url(alias)))
    return IndexUrls(default=indexes.url(PYPI) or configured_index(), named=named)


def install_environment(urls: IndexUrls, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for uv on this machine. URLs go here, as arguments are public."""
    result = environment(environ) | {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if urls.default:
        result["UV_DEFAULT_INDEX"] = urls.default
    if urls.named:
        result["UV_INDEX"] = " ".join(urls.named)
    return result


def uv_config(urls: IndexUrls) -> str:
    """Return a uv.toml that names the indexes."""
    lines = ['index-strategy = "unsafe-best-match"']
    for url in urls.named:
        lines += ["[[index]]", f"url = {_toml(url)}"]
    if urls.default:
        lines += ["[[index]]", f"url = {_toml(urls.default)}", "default = true"]
    return "\n".join(lines) + "\n"


def pip_config(index: str | None) -> str:
    """Return a pip.conf that names an index, or leaves pip its own."""
    return f"[global]\nindex-url = {index.replace('%', '%%')}\n" if index else "[global]\n"


def installer_index(urls: IndexUrls) -> str | None:
    """Return the index to take uv from: that of the wheels if it has uv, else the machine's."""
    if urls.default is None:
        return None
    try:
        with httpx.Client(timeout=TIMEOUT, follow_redirects=True) as client:
            return urls.default if fetch_page(urls.default, "uv", client) else configured_index()
    except IndexUnreachableError:
        return configured_index()


def ca_bundle(environ: Mapping[str, str]) -> Path | None:
    """Return the CA bundle that this machine trusts: the environment's, or the system's."""
    candidates = [*(environ.get(name, "") for name in _CA_FILES), *_SYSTEM_CA]
    return next((Path(file) for file in candidates if file and Path(file).is_file()), None)


def install_failure(lock: Lock, output: str) -> TorchproofError:
    """Return the error that an installer's output shows, naming the wheel and the cell."""
    text = redact(output)
    wheel = _named_wheel(lock, text)
    subject = f"{lock.cell}: {wheel or 'a wheel'}"
    if _FULL.search(text):
        return HostError(f"{lock.cell}: the disk is full", fix="free some space and run again")
    if _HASH.search(text):
        return IntegrityError(
            f"{subject} does not have the sha256 that the lock promises{_hashes(text)}",
            fix="do not use this file; if the index changed it on purpose, lock the cell again",
        )
    if _BROKEN.search(text):
        return IntegrityError(
            f"{subject} cannot be unpacked: truncated or damaged ({_last(text)})",
            fix="fetch it again; if it stays so, the index serves a broken file",
        )
    if NETWORK_TROUBLE.search(text) and not _GONE.search(text):
        return IndexUnreachableError(
            f"{lock.cell}: the package index does not answer: {_last(text)}",
            fix="check the network and the index that uv and pip are configured with, run again",
        )
    if _GONE.search(text):
        return CellError(
            f"{subject} is not on its index (any more): {_last(text)}",
            fix="lock the cell again, or check `indexes:` in matrix.yaml",
        )
    return CellError(f"{lock.cell}: installing failed: {_last(text)}", fix="read the log")


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _named_wheel(lock: Lock, text: str) -> str | None:
    """Return the file name of the wheel that an error speaks of."""
    found = [
        (place.start(), wheel.filename)
        for wheel in lock.wheels
        if (
            place := re.search(
                rf"(?<![\w-]){re.escape(wheel.name)}(==|-|@| ?\(?v?){re.escape(wheel.version)}|"
                rf"{re.escape(wheel.filename)}",
                _errors(text),
            )
        )
    ]
    return min(found)[1] if found else None


def _errors(text: str) -> str:
    """Return the part of an output that describes the failure."""
    marks = [place.start() for place in re.finditer(r"error:|×|ERROR|Hash mismatch", text)]
    told = text[marks[0] :] if marks else text
    return told.partition("\n------")[0]


def _hashes(text: str) -> str:
    found = re.findall(r"sha256:([0-9a-f]{64})", _errors(text))
    if len(found) < 2:
        return ""
    return f" (promised {found[0]}, came {found[-1]})"


def _last(text: str) -> str:
    """Return the end of an error message, without BuildKit's step numbers and uv's arrows."""
    lines: Iterable[str] = (
        re.sub(r"^#\d+ [\d.]+ ", "", line).strip(" ╰─▶│├×") for line in _errors(text).splitlines()
    )
    return " · ".join([line for line in lines if line][-3:])
