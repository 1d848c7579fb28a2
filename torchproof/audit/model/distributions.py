"""Installed Python distributions, read from their `.dist-info`. Pure: no I/O beyond the facts."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from torchproof.audit.facts import ImageFacts

CUDA_LINE = re.compile(r"^cuda(?:: [^=]+)? = (?:'([\d.]+)'|None)", re.MULTILINE)
"""`cuda` of torch/version.py, with or without its annotation."""
LOCAL_CUDA = re.compile(r"^(cu\d{2,3}|cpu|rocm[\d.]+|xpu)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFile:
    """One line of RECORD: an absolute path and, where stated, `sha256=…` and bytes."""

    path: str
    hash: str = ""
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One installed distribution. `name` is normalised; `site` is the directory it is in."""

    name: str
    version: str
    site: str
    info: str
    """Path of its `.dist-info`."""
    requires: tuple[str, ...] = ()
    """`Requires-Dist`, as written."""
    requires_python: str = ""
    tags: tuple[str, ...] = ()
    """Wheel tags, as written ("cp311-cp311-manylinux_2_28_x86_64")."""
    installer: str = ""
    files: tuple[RecordedFile, ...] = ()
    cuda: str | None = None
    """For torch and its companions: "cu126", "cpu" or None if the files do not say."""
    torch_version: str = ""
    """For torch: `__version__` with its local part ("2.9.1+cu128"), from torch/version.py."""

    @property
    def local(self) -> str:
        """The local part of the version ("cu126"), or ""."""
        return self.version.partition("+")[2]


def find_distributions(facts: ImageFacts) -> tuple[Distribution, ...]:
    """Read every `.dist-info` of the image, sorted by (site directory, name)."""
    found = [
        _distribution(facts, path)
        for path in facts.files
        if path.endswith(".dist-info")
        and _is_site(facts, posixpath.dirname(path))
        and facts.text(path + "/METADATA") is not None
    ]
    return tuple(sorted(found, key=lambda dist: (dist.site, dist.name)))


def _is_site(facts: ImageFacts, folder: str) -> bool:
    """Tell whether Python imports from a directory; `setuptools/_vendor` is not one."""
    named = posixpath.basename(folder) in ("site-packages", "dist-packages")
    return named or folder in facts.env.get("PYTHONPATH", "").split(":")


def _distribution(facts: ImageFacts, info: str) -> Distribution:
    site = posixpath.dirname(info)
    headers = HeaderParser().parsestr(facts.text(info + "/METADATA") or "")
    fallback = posixpath.basename(info).removesuffix(".dist-info").partition("-")
    name = canonicalize_name(headers.get("Name") or fallback[0])
    version = (headers.get("Version") or fallback[2]).strip()
    wheel = HeaderParser().parsestr(facts.text(info + "/WHEEL") or "")
    source = facts.text(f"{site}/{name}/version.py") or "" if name in COMPANIONS else ""
    return Distribution(
        name=name,
        version=version,
        site=site,
        info=info,
        requires=tuple(headers.get_all("Requires-Dist") or ()),
        requires_python=headers.get("Requires-Python") or "",
        tags=tuple(wheel.get_all("Tag") or ()),
        installer=(facts.text(info + "/INSTALLER") or "").strip(),
        files=tuple(_record(site, facts.text(info + "/RECORD") or "")),
        cuda=_cuda(source, version, tuple(headers.get_all("Requires-Dist") or ())),
        torch_version=_assigned(source, "__version__") or version,
    )


COMPANIONS = ("torch", "torchvision", "torchaudio")
"""Distributions that carry `version.py` with the CUDA they were built for."""


def _record(site: str, text: str) -> Iterator[RecordedFile]:
    for row in csv.reader(text.splitlines()):
        if not row or not row[0]:
            continue
        path = posixpath.normpath(posixpath.join(site, row[0]))
        size = row[2] if len(row) > 2 else ""
        yield RecordedFile(
            path=path,
            hash=row[1] if len(row) > 1 else "",
            size=int(size) if size.isdigit() else None,
        )


def _assigned(source: str, name: str) -> str:
    match = re.search(rf"^{name}(?:: \w+)? = '([^']+)'", source, re.MULTILINE)
    return match.group(1) if match else ""


def _cuda(source: str, version: str, requires: tuple[str, ...]) -> str | None:
    stated = CUDA_LINE.search(source)
    if stated:
        return "cu" + stated.group(1).replace(".", "")[:3] if stated.group(1) else "cpu"
    for text in (_assigned(source, "__version__"), version):
        local = LOCAL_CUDA.match(text.partition("+")[2])
        if local:
            return local.group(1)
    majors = {found for line in requires for found in re.findall(r"nvidia-[\w-]+-cu(\d+)", line)}
    return f"cu{majors.pop()}" if len(majors) == 1 else None
