"""Image references, and what is known of base images without asking a registry. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.version import Version

from torchproof.upstream.data_files import read_data

FLOATING_TAGS = re.compile(
    r"(.*[-_.])?(latest|auto|nightly|dev|devel|edge|stable|main|master|rolling|unstable|canary|lts)"
)
"""Tags that move by design. `devel` alone; `12.8.1-devel-ubuntu22.04` names a flavour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An image reference taken apart; `repository` without Docker Hub's own prefixes."""

    text: str
    repository: str
    tag: str = ""
    digest: str = ""
    local: bool = False

    @property
    def version(self) -> Version | None:
        """The leading number of the tag: `12.8.1-devel-ubuntu22.04` → 12.8.1."""
        match = re.match(r"v?(\d+(?:\.\d+)*)", self.tag)
        return Version(match[1]) if match else None

    @property
    def cuda(self) -> str | None:
        """The CUDA version that the tag names ("12.8"), if any."""
        if self.repository.endswith("nvidia/cuda"):
            match = re.match(r"(\d+\.\d+)", self.tag)
        else:
            match = re.search(r"(?:cuda|cu)-?(\d{2}\.\d)", self.tag)
        return match[1] if match else None

    @property
    def floats(self) -> bool:
        """Whether the tag is made to move (or is missing, which means `latest`)."""
        if self.digest:
            return False
        return not self.tag or (bool(FLOATING_TAGS.fullmatch(self.tag)) and not self.version)


def parse_reference(text: str) -> Reference | None:
    """Read an image reference; None for `scratch`, and for one with variables left in it."""
    if "$" in text or not text or text == "scratch":
        return None
    name, _, digest = text.partition("@")
    head, _, tail = name.rpartition("/")
    last, _, tag = tail.partition(":")
    repository = f"{head}/{last}" if head else last
    host = repository.split("/")[0]
    local = host.split(":")[0] in ("localhost", "127.0.0.1")
    plain = re.sub(
        r"^(docker\.io|index\.docker\.io|registry-1\.docker\.io)/(library/)?", "", repository
    )
    return Reference(
        text=text, repository=plain.removeprefix("library/"), tag=tag, digest=digest, local=local
    )


@cache
def base_images() -> Mapping[str, Any]:
    """Return the content of upstream/data/base_images.yaml."""
    data: dict[str, Any] = read_data("base_images")
    return data


def known_environment(base: str) -> frozenset[str]:
    """Return the variables that a known base image sets; empty for any other image."""
    reference = parse_reference(base)
    if reference is None:
        return frozenset()
    for repository, item in base_images()["environment"].items():
        if reference.repository.removeprefix("nvcr.io/") in (repository, repository[8:]):
            return frozenset(item["names"])
    return frozenset()
