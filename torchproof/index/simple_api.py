"""Pages of a package index (PEP 503 HTML, PEP 691 JSON): which wheels a project has there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import httpx
from packaging.utils import canonicalize_name

from torchproof._http import NO_ANSWER, failure_text, redact
from torchproof.errors import IndexUnreachableError
from torchproof.index.uv import WheelFile

TIMEOUT = httpx.Timeout(10.0, connect=5.0)
"""Seconds; an index that does not begin to answer within them counts as unreachable."""

_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.9, "
    "text/html;q=0.5"
)


def fetch_page(index: str, project: str, client: httpx.Client) -> tuple[WheelFile, ...]:
    """Return the wheels of a project at an index; empty if the index has no such project.

    Raises IndexUnreachableError if the index does not answer, or not with a page.
    """
    url = f"{index.rstrip('/')}/{canonicalize_name(project)}/"
    shown = redact(url)
    try:
        answer = client.get(url, headers={"Accept": _ACCEPT})
    except httpx.TimeoutException:
        raise IndexUnreachableError(f"{shown} did not answer in time") from None
    except NO_ANSWER as error:
        raise IndexUnreachableError(f"{shown} does not answer: {failure_text(error)}") from error
    if answer.status_code == httpx.codes.NOT_FOUND:
        return ()
    if answer.status_code != httpx.codes.OK:
        raise IndexUnreachableError(f"{shown} answers HTTP {answer.status_code}")
    kind = answer.headers.get("content-type", "")
    return parse_page(answer.text, base=str(answer.url), kind=kind)


def parse_page(text: str, *, base: str, kind: str) -> tuple[WheelFile, ...]:
    """Read the wheels of a page; `base` is its URL, `kind` its content type.

    Raises IndexUnreachableError for anything that is not a page of an index.
    """
    if "json" in kind:
        return _parse_json(text, base)
    parser = _Anchors()
    parser.feed(text)
    base = urljoin(base, parser.base) if parser.base else base
    found = tuple(
        wheel
        for href, yanked in parser.found
        if (wheel := _wheel(urljoin(base, href), yanked=yanked))
    )
    if not found:
        # A portal or proxy that answers for the index must not look like an index without wheels.
        raise IndexUnreachableError(f"{redact(base)} does not answer with a page of an index")
    return found


def _parse_json(text: str, base: str) -> tuple[WheelFile, ...]:
    try:
        files = json.loads(text)["files"]
        return tuple(
            wheel
            for file in files
            if (
                wheel := _wheel(
                    urljoin(base, file["url"]),
                    size=file.get("size"),
                    sha256=file.get("hashes", {}).get("sha256"),
                    yanked=bool(file.get("yanked")),
                )
            )
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexUnreachableError(
            f"{redact(base)} does not answer with a page of an index"
        ) from error


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.found: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values: Mapping[str, str | None] = dict(attrs)
        href = values.get("href")
        if href and tag == "base":
            self.base = href
        elif href and tag == "a":
            self.found.append((href, "data-yanked" in values))


def _wheel(
    url: str, *, size: int | None = None, sha256: str | None = None, yanked: bool = False
) -> WheelFile | None:
    location, fragment = urldefrag(url)
    filename = unquote(urlsplit(location).path.rsplit("/", 1)[-1])
    if not filename.endswith(".whl"):
        return None
    if sha256 is None and fragment.startswith("sha256="):
        sha256 = fragment.removeprefix("sha256=").lower()
    return WheelFile(filename=filename, url=location, sha256=sha256, size=size, yanked=yanked)
