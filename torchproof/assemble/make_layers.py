"""A cell's image straight from its wheels: layers are made while they are written or sent.

Nothing of the image is run, and no daemon or root is needed. A layer that the destination has is
neither downloaded nor made; what is made is checked against every hash that is known of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from torchproof.assemble.base_image import BaseImage, BaseLayer
from torchproof.assemble.destination import Destination, OpenSource
from torchproof.assemble.image_documents import TITLE, Image, ImageLayerFacts, make_image
from torchproof.assemble.key_locks import Busy
from torchproof.assemble.layer.prune import require_served
from torchproof.assemble.layer.stream import LayerStream
from torchproof.assemble.layer_facts import FactsStore, LayerFacts, write_facts, write_whole
from torchproof.assemble.work import Work, all_work
from torchproof.errors import HostError, IntegrityError
from torchproof.image.config import image_config
from torchproof.image.layers import Plan
from torchproof.index.verified_files import mark
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import LayerName, Lock
from torchproof.model.results import Built, ImageLayer, SubjectKind
from torchproof.registry import sha256_digest

FACTS_FILE = "layers.yaml"
"""Beside the lock."""
Note = Callable[[str], None]
"""Takes lines for people: what was reused, made, sent."""


class Assembler:
    """Builds cells into a destination.

    `store` has the wheels or downloads them, `cache` is torchproof's cache folder, `workers` blobs
    are made at a time; assemblers with the same `busy` share what they make, and `stopping`, once
    set, ends a build with HostError at the next piece of a layer.

    Raises IntegrityError for bytes that are not as locked, RegistryError and HostError for faults
    of the world; a blob is either whole and right in the destination or not there, and the image's
    name is set last.
    """

    def __init__(
        self,
        store: WheelStore,
        cache: Path,
        *,
        workers: int | None = None,
        note: Note | None = None,
        busy: Busy | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._facts = FactsStore(cache / "layers")
        self._workers = workers or max(2, min(4, os.cpu_count() or 2))
        self._note = note or (lambda _: None)
        self._busy = busy or Busy()
        self._stopping = stopping or threading.Event()

    @property
    def facts(self) -> FactsStore:
        """What is known of layers."""
        return self._facts

    def build(
        self,
        plan: Plan,
        lock: Lock,
        base: BaseImage,
        destination: Destination,
        *,
        folder: Path | None = None,
    ) -> Built:
        """Build one cell. `folder` holds its lock; layer facts are read from and written there."""
        started = time.monotonic()
        require_served(lock.archs, lock.gpus)
        if folder is not None:
            self._facts.load(folder / FACTS_FILE)
        work = all_work(plan, lock, base, store=self._store, cache=self._cache)
        known = {one.key: facts for one in work if (facts := self._facts.get(one.key))}
        reused = False
        if len(known) == len(work):
            image, layers = self._image(lock, base, work, known)
            reused = destination.current() == image.digest
        if not reused:
            # One question to the index for all; the downloads then overlap with the rest.
            self._store.look_up(
                wheel
                for one in work
                if one.key not in known
                for wheel in one.wheels
                if self._store.path(wheel) is None
            )
            made = self._make(base, work, known, destination)
            image, layers = self._image(lock, base, work, made)
            known = made
            self._finish(image, layers, destination)
        if folder is not None:
            write_facts(folder / FACTS_FILE, [(one.title, known[one.key]) for one in work])
        return Built(
            cell=lock.cell,
            subject=SubjectKind.IMAGE,
            ref=destination.ref,
            digest=image.digest,
            size=sum(layer.descriptor.size for layer in layers),
            layers=tuple(
                ImageLayer(
                    name=layer.name, digest=layer.descriptor.digest, size=layer.descriptor.size
                )
                for layer in layers
            ),
            plan_hash=plan.hash,
            seconds=time.monotonic() - started,
            reused=reused,
        )

    def _make(
        self,
        base: BaseImage,
        work: list[Work],
        known: dict[str, LayerFacts],
        destination: Destination,
    ) -> dict[str, LayerFacts]:
        """Bring every blob to the destination, several at a time.

        Those made of the base's files come first, because reading it keeps one core busy; then the
        largest, so that what is left for the end is small.
        """
        made: dict[str, LayerFacts] = {}

        def make(one: Work) -> None:
            with self._busy.alone(one.key):
                facts = known.get(one.key) or self._facts.get(one.key)
                made[one.key] = self._one(one, facts, destination)

        def copy(layer: BaseLayer) -> None:
            with self._busy.alone(layer.descriptor.digest):
                _copy(
                    destination,
                    lambda: self._until_stopped(layer.open()),
                    layer.descriptor.digest,
                    layer.descriptor.size,
                )

        jobs = [(one.kept, one.size, partial(make, one)) for one in work]
        jobs += [(False, layer.descriptor.size, partial(copy, layer)) for layer in base.layers]
        jobs.sort(key=lambda job: job[:2], reverse=True)
        with ThreadPoolExecutor(self._workers, thread_name_prefix="layer") as pool:
            running = [pool.submit(job) for _, _, job in jobs]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                destination.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return made

    def _one(self, one: Work, facts: LayerFacts | None, destination: Destination) -> LayerFacts:
        if facts and destination.has(facts.digest, facts.size):
            self._note(f"{one.title}: there already")
            return facts
        if one.kept:
            return self._kept(one, facts, destination)
        streams: list[LayerStream] = []

        def source() -> Iterator[bytes]:
            one.pruners.clear()
            streams.append(one.make(facts is None))
            return self._until_stopped(streams[-1].chunks())

        started = time.monotonic()
        digest, size = destination.write(
            source,
            digest=facts.digest if facts else None,
            size=facts.size if facts else None,
        )
        self._note(f"{one.title}: {size / 1e6:,.1f} MB in {time.monotonic() - started:.1f} s")
        if facts is None:
            for path, state in one.unchecked.items():
                mark(path, state)
            notes = tuple(
                f"{one.title}: {text}" for pruner in one.pruners for text in pruner.counts.untouched
            )
            facts = LayerFacts(
                key=one.key,
                digest=digest,
                diff_id=streams[-1].known_diff_id,
                size=size,
                notes=notes,
            )
            self._facts.put(facts)
        return facts

    def _until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._stopping.is_set():
                raise HostError("stopped while making a layer; whole layers are kept")
            yield piece

    def _kept(self, one: Work, facts: LayerFacts | None, destination: Destination) -> LayerFacts:
        """Make a small blob whole, or take it from the cache."""
        path = self._cache / "layers" / f"{one.key.removeprefix('sha256:')}.tar.gz"
        data = path.read_bytes() if facts and path.is_file() else b""
        if facts is None or sha256_digest(data) != facts.digest:
            stream = one.make(True)
            data = b"".join(stream.chunks())
            made = LayerFacts(
                key=one.key,
                digest=sha256_digest(data),
                diff_id=stream.known_diff_id,
                size=len(data),
            )
            if facts is not None and made != facts:
                raise IntegrityError(
                    f"{one.title} has digest {made.digest}, recorded is {facts.digest}",
                    fix="delete the recorded layer facts (layers.yaml, the cache), build again",
                )
            write_whole(path, data)
            self._facts.put(made)
            facts = made
        _copy(destination, lambda: iter((data,)), facts.digest, facts.size)
        self._note(f"{one.title}: {facts.size / 1e6:,.1f} MB")
        return facts

    def _image(
        self, lock: Lock, base: BaseImage, work: list[Work], facts: dict[str, LayerFacts]
    ) -> tuple[Image, list[ImageLayerFacts]]:
        layers = [
            ImageLayerFacts(
                name=LayerName.BASE, title="", descriptor=one.descriptor, diff_id=one.diff_id
            )
            for one in base.layers
        ]
        layers += [
            ImageLayerFacts(
                name=one.name,
                title=one.title,
                descriptor=facts[one.key].descriptor({TITLE: one.title}),
                diff_id=facts[one.key].diff_id,
            )
            for one in work
        ]
        config = image_config(lock)
        image = make_image(
            lock, config, layers, base_config=base.config, annotations=base.annotations
        )
        return image, layers

    def _finish(
        self, image: Image, layers: list[ImageLayerFacts], destination: Destination
    ) -> None:
        _copy(destination, lambda: iter((image.config,)), image.config_digest, len(image.config))
        destination.finish(
            image.manifest,
            image.config_digest,
            tuple(layer.descriptor.digest for layer in layers),
        )


def _copy(destination: Destination, source: OpenSource, digest: str, size: int) -> None:
    if not destination.has(digest, size):
        destination.write(source, digest=digest, size=size)
