"""What a user names as the target of an image: a folder, or a repository of a registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torchproof.assemble.destination import Destination
from torchproof.assemble.layout_destination import LayoutDestination
from torchproof.assemble.registry_destination import RemoteDestination
from torchproof.registry import Reference, Registry


def image_name(cell: str) -> str:
    """Return the name of a cell's image in a layout, as `docker load` shows it."""
    return f"localhost/torchproof:{cell}"


def in_registry(target: str) -> bool:
    """Tell whether a target names a registry's repository and not a folder.

    A target whose first part is not a host (`build/oci`, `/srv/oci`, `./x`) is a folder.
    """
    host, slash, _ = target.partition("/")
    return bool(slash and host.strip(".")) and ("." in host or ":" in host or host == "localhost")


@contextmanager
def open_destination(
    target: str, cell: str, *, name: str | None = None, beside: Sequence[str] = ()
) -> Iterator[Destination]:
    """Open a folder or `REGISTRY/REPOSITORY[:TAG]`; the tag is the cell's name unless given.

    `name` is the image's name in a layout. Blobs of the repositories `beside` may be mounted.
    """
    if not in_registry(target):
        yield LayoutDestination(Path(target), name or image_name(cell))
        return
    parsed = Reference.parse(target)
    reference = Reference(
        registry=parsed.registry, repository=parsed.repository, tag=parsed.tag or cell
    )
    with Registry(reference.registry) as registry:
        yield RemoteDestination(registry, reference, beside=beside)
