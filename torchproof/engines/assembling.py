"""The builder `assemble` beside an engine: images come from wheels, the engine only runs them.

Each cell's image is in its own folder (an OCI image layout). A container engine, where there
is one, loads it when the first command is to run in it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torchproof._process import RunResult
from torchproof.assemble.build_image import build_image
from torchproof.assemble.key_locks import KeyLocks
from torchproof.assemble.layout_destination import LayoutDestination, as_tar
from torchproof.assemble.make_layers import BuildResources
from torchproof.assemble.target import image_name
from torchproof.engines.engine import Engine, RunSpec
from torchproof.errors import HostError
from torchproof.image.layers import make_plan
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import Lock
from torchproof.model.results import Built, Host, ImageLayer, SubjectKind

LAYOUTS = Path("build/oci")
"""Where layouts are, one folder a cell."""
_RECORD = ".torchproof.json"
"""In a layout: what was built. Names that begin with a dot are not part of the image."""


class Loader(Protocol):
    """A container engine that takes images as Docker's tar archives."""

    def load(self, image_id: str, archive: Iterable[bytes]) -> None:
        """Load an image unless one of this id is there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblingEngine:
    """Assembles images and runs commands in them through `engine`.

    `loader` is the same engine if it takes images, None if it runs no images at all. With
    `slim_only` only slim images are assembled, and the engine builds the others.
    """

    engine: Engine
    loader: Loader | None
    store: WheelStore
    cache: Path
    slim_only: bool
    layouts: Path = LAYOUTS
    repository: str | None = None
    """`REGISTRY/REPOSITORY` that images go to at once, each under its cell's name; no layouts."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set while what is being assembled has to end."""
    locks: KeyLocks = field(default_factory=KeyLocks)

    @property
    def name(self) -> str:
        """The name of the engine beneath."""
        return self.engine.name

    @property
    def copies(self) -> int:
        """How often a cell's bytes are on disk, unpacked: as the engine has them."""
        return 0 if self.repository else self.engine.copies

    @property
    def parallel(self) -> bool:
        """Whether builds at the same time share their equal steps."""
        return not self.slim_only or self.engine.parallel

    def host(self) -> Host:
        """Describe the machine as the engine sees it."""
        return self.engine.host()

    def find(self, lock: Lock) -> Built | None:
        """Return the image of an earlier run if all its blobs are there.

        What a registry has is found out while building.
        """
        if not self._assembles(lock):
            return self.engine.find(lock)
        if self.repository:
            return None
        layout = self.layouts / lock.cell
        try:
            built = _read(layout / _RECORD)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        there = LayoutDestination(layout, image_name(lock.cell)).current()
        return built if built.plan_hash == make_plan(lock).hash and built.digest == there else None

    def build(self, lock: Lock, *, folder: Path, log: Path) -> Built:
        """Assemble a cell's image into its layout or the repository.

        Raises as `build_image`.
        """
        if not self._assembles(lock):
            return self.engine.build(lock, folder=folder, log=log)
        layout = self.layouts / lock.cell
        self.stopping.clear()
        with log.open("a", encoding="utf-8") as notes:

            def note(line: str) -> None:
                print(line, file=notes, flush=True)

            resources = BuildResources(
                store=self.store,
                cache=self.cache,
                note=note,
                locks=self.locks,
                stopping=self.stopping,
            )
            built = build_image(
                lock,
                self.repository or str(layout.absolute()),
                resources,
                log=log,
                folder=folder,
                name=image_name(lock.cell),
            )
        if self.repository:
            return built
        built = replace(built, ref=str(layout))
        (layout / _RECORD).write_text(json.dumps(asdict(built)), encoding="utf-8")
        return built

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        """Run one command in a cell; an assembled image is loaded into the engine first."""
        layout = Path(built.ref)
        if not (layout / "oci-layout").is_file():
            return self.engine.run(built, spec)
        if self.loader is None:
            raise HostError(
                "no container engine answers, so nothing can run in an assembled image",
                fix="start Docker or Podman and run again",
            )
        image = _config_digest(layout, built.digest)
        self.loader.load(image, as_tar(layout))
        return self.engine.run(replace(built, digest=image), spec)

    def stop(self) -> None:
        """Stop what this process runs through the engine now, and what it assembles."""
        self.stopping.set()
        self.engine.stop()

    def free_bytes(self) -> int:
        """Return the bytes free where the engine stores what it builds."""
        return self.engine.free_bytes()

    def _assembles(self, lock: Lock) -> bool:
        return bool(lock.gpus) or not self.slim_only


def _read(record: Path) -> Built:
    data: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    layers = tuple(ImageLayer(**layer) for layer in data.pop("layers"))
    subject = SubjectKind(data.pop("subject"))
    return Built(**data | {"layers": layers, "subject": subject, "reused": True})


def _config_digest(layout: Path, digest: str) -> str:
    """Return the digest of an image's configuration: its id in a Docker Engine."""
    blob = layout / "blobs" / "sha256" / digest.removeprefix("sha256:")
    return str(json.loads(blob.read_bytes())["config"]["digest"])
