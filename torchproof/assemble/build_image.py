"""One cell, from its lock to an image in a folder or a registry: the builder `assemble`.

    built = build_cell(plan, lock, target="build/oci", store=store, cache=cache_dir(), log=log)

`target` is a folder (an OCI image layout) or `REGISTRY/REPOSITORY[:TAG]`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torchproof.assemble.base_image import BaseImage, from_registry, from_tar
from torchproof.assemble.builder import Assembler, Note
from torchproof.assemble.destination import Destination
from torchproof.assemble.key_locks import Busy
from torchproof.assemble.layout_destination import LayoutDestination
from torchproof.assemble.registry_destination import RemoteDestination
from torchproof.image.bootstrap import ensure_base
from torchproof.image.layers import Plan
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import Lock
from torchproof.model.results import Built
from torchproof.registry import Reference, Registry


def build_cell(
    plan: Plan,
    lock: Lock,
    *,
    target: str,
    store: WheelStore,
    cache: Path,
    log: Path,
    folder: Path | None = None,
    name: str | None = None,
    beside: Sequence[str] = (),
    workers: int | None = None,
    note: Note | None = None,
    busy: Busy | None = None,
    stopping: threading.Event | None = None,
) -> Built:
    """Build one cell's image into a folder or a registry; return what it is there.

    `log` takes the output of making a `bootstrap:` base. `folder` holds the cell's lock and gets
    its `layers.yaml`. `name` is the image's name in a layout, as `docker load` shows it. `beside`
    are repositories of the same registry whose blobs may be mounted. Cells that are built side by
    side with the same `busy` make common layers once; `stopping`, once set, ends the build soon.
    Raises InputError, CellError (IntegrityError for bytes that are not as locked), HostError
    (RegistryError); the image's name is only set when all of it is there.
    """
    assembler = Assembler(store, cache, workers=workers, note=note, busy=busy, stopping=stopping)
    with ExitStack() as stack:
        base = stack.enter_context(open_base(lock, assembler, cache=cache, log=log))
        destination = stack.enter_context(
            open_destination(
                target, lock.cell, name=name, beside=(*beside, *_base_beside(lock, target))
            )
        )
        return assembler.build(plan, lock, base, destination, folder=folder)


def image_name(cell: str) -> str:
    """Return the name of a cell's image in a layout, as `docker load` shows it."""
    return f"localhost/torchproof:{cell}"


def in_registry(target: str) -> bool:
    """Tell whether a target names a registry's repository and not a folder."""
    host, slash, _ = target.partition("/")
    return bool(slash and host.strip(".")) and ("." in host or ":" in host or host == "localhost")


@contextmanager
def open_destination(
    target: str, cell: str, *, name: str | None = None, beside: Sequence[str] = ()
) -> Iterator[Destination]:
    """Open a folder or `REGISTRY/REPOSITORY[:TAG]` (the tag is the cell's name unless given).

    A target whose first part is no host (`build/oci`, `/srv/oci`, `./x`) is a folder.
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


def _base_beside(lock: Lock, target: str) -> tuple[str, ...]:
    """Return the base's repository if it lies in the registry that the image goes to."""
    if lock.base.image is None:
        return ()
    base = Reference.familiar(lock.base.image)
    return (base.repository,) if target.startswith(f"{base.registry}/") else ()


@contextmanager
def open_base(lock: Lock, assembler: Assembler, *, cache: Path, log: Path) -> Iterator[BaseImage]:
    """Open a lock's base: read from its registry as needed, or made on this machine."""
    if lock.base.image is None:
        path = ensure_base(lock.base, lock.platform, cache=cache, log=log)
        yield from_tar(path, assembler.facts)
        return
    reference = Reference.familiar(lock.base.image)
    with Registry(reference.registry) as registry:
        yield from_registry(registry, reference, lock.platform)
