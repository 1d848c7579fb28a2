"""Image references: `registry/repository:tag@digest`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from torchproof.errors import InputError
from torchproof.model.digests import is_digest

DOCKER_HUB = "docker.io"
_REPOSITORY = re.compile(
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The name of an image in a registry. Grammar: OCI distribution spec 1.1, "Pull"."""

    registry: str
    """Host and port."""
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.registry}/{self.repository}{tag}{digest}"

    @property
    def target(self) -> str:
        """What to request the manifest by: the digest if there is one, else the tag."""
        return self.digest or self.tag or "latest"

    @classmethod
    def familiar(cls, text: str) -> Reference:
        """Read a reference as Docker does: without a host it is on Docker Hub (`debian:12`)."""
        host, slash, _ = text.partition("/")
        if slash and ("." in host or ":" in host or host == "localhost"):
            return cls.parse(text)
        return cls.parse(f"{DOCKER_HUB}/{text}" if slash else f"{DOCKER_HUB}/library/{text}")

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read a reference; a registry host is required. Raise `InputError` if it is invalid."""
        fix = "write REGISTRY/REPOSITORY:TAG, for example registry.example.org/ai/torch:2.9.1"
        host, slash, rest = text.partition("/")
        named_host = "." in host or ":" in host or host == "localhost"
        if not slash or not named_host or not _HOST.fullmatch(host):
            raise InputError(f"no registry in the image reference {text!r}", fix=fix)
        rest, at, digest = rest.partition("@")
        repository, colon, tag = rest.partition(":")
        if not _REPOSITORY.fullmatch(repository):
            raise InputError(f"invalid repository name {repository!r} in {text!r}", fix=fix)
        if colon and not _TAG.fullmatch(tag):
            raise InputError(f"invalid tag {tag!r} in {text!r}", fix=fix)
        if at and not is_digest(digest):
            raise InputError(f"invalid digest {digest!r} in {text!r}", fix=fix)
        return cls(registry=host, repository=repository, tag=tag or None, digest=digest or None)


def is_loopback(registry: str) -> bool:
    """Tell whether a registry host is this machine, where plain HTTP is customary."""
    host = registry.rsplit(":", 1)[0] if not registry.endswith("]") else registry
    host = host.strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
