"""Recipes → blobs at the destination, several at a time, made while they are written or sent.

A layer that the destination has is neither downloaded nor made; what is made is checked against
every hash that is known of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torchproof.assemble.base_image import BaseImage, BaseLayer
from torchproof.assemble.destination import Destination, OpenSource
from torchproof.assemble.key_locks import KeyLocks
from torchproof.assemble.layer_facts import FactsStore, LayerFacts, write_whole
from torchproof.assemble.open_layer import LayerOpener, OpenLayer
from torchproof.assemble.recipes import ImageRecipe, LayerRecipe, WheelsRecipe
from torchproof.errors import HostError, IntegrityError
from torchproof.index.verified_files import mark
from torchproof.index.wheel_store import WheelStore
from torchproof.model.digests import sha256_digest

Note = Callable[[str], None]
"""Takes lines for people: what was reused, made, sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResources:
    """What builds take wheels from, and what those share that run side by side.

    `store` has the wheels or downloads them, `cache` is torchproof's cache folder, `workers` blobs
    are made at a time; builds with the same `locks` make a common layer once; `stopping`, once
    set, ends a build with HostError at the next piece of a layer.
    """

    store: WheelStore
    cache: Path
    workers: int = field(default_factory=lambda: max(2, min(4, os.cpu_count() or 2)))
    note: Note = lambda _line: None
    locks: KeyLocks = field(default_factory=KeyLocks)
    stopping: threading.Event = field(default_factory=threading.Event)


class LayerMaker:
    """Makes the layers of one image, and copies those of its base."""

    def __init__(
        self,
        image: ImageRecipe,
        base: BaseImage,
        destination: Destination,
        *,
        facts: FactsStore,
        resources: BuildResources,
    ) -> None:
        self._image = image
        self._base = base
        self._destination = destination
        self._facts = facts
        self._resources = resources
        self._opener = LayerOpener(
            image, base, store=resources.store, scratch=resources.cache / "bases" / "wheels"
        )

    def known(self) -> dict[str, LayerFacts]:
        """Return what is known of the layers without making them, by key."""
        found = ((one.key, self._facts.get(one.key)) for one in self._image.layers)
        return {key: facts for key, facts in found if facts}

    def make(self, known: Mapping[str, LayerFacts]) -> dict[str, LayerFacts]:
        """Bring every blob to the destination, several at a time; return their facts by key.

        Those made of the base's files come first, because reading it keeps one core busy; then the
        largest, so that what is left for the end is small.
        """
        self._look_up_wheels(known)
        made: dict[str, LayerFacts] = {}

        def make(recipe: LayerRecipe) -> None:
            with self._resources.locks.alone(recipe.key):
                facts = known.get(recipe.key) or self._facts.get(recipe.key)
                made[recipe.key] = self._one(recipe, facts)

        jobs = [
            (not isinstance(one, WheelsRecipe), one.size, partial(make, one))
            for one in self._image.layers
        ]
        jobs += [
            (False, layer.descriptor.size, partial(self._copy_base, layer))
            for layer in self._base.layers
        ]
        jobs.sort(key=lambda job: job[:2], reverse=True)
        with ThreadPoolExecutor(self._resources.workers, thread_name_prefix="layer") as pool:
            running = [pool.submit(job) for _, _, job in jobs]
            try:
                for done in as_completed(running):
                    done.result()
            except BaseException:
                self._destination.stop()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return made

    def _look_up_wheels(self, known: Mapping[str, LayerFacts]) -> None:
        """Ask the index once for all wheels; the downloads then overlap with the rest."""
        self._resources.store.look_up(
            wheel
            for one in self._image.layers
            if isinstance(one, WheelsRecipe) and one.key not in known
            for wheel in one.wheels
            if self._resources.store.path(wheel) is None
        )

    def _copy_base(self, layer: BaseLayer) -> None:
        descriptor = layer.descriptor
        with self._resources.locks.alone(descriptor.digest):
            copy_blob(
                self._destination,
                lambda: self._until_stopped(layer.open()),
                descriptor.digest,
                descriptor.size,
            )

    def _one(self, recipe: LayerRecipe, facts: LayerFacts | None) -> LayerFacts:
        if facts and self._destination.has(facts.digest, facts.size):
            self._resources.note(f"{recipe.title}: there already")
            return facts
        if not isinstance(recipe, WheelsRecipe):
            return self._kept(recipe, facts)
        opened: list[OpenLayer] = []

        def source() -> Iterator[bytes]:
            opened.append(self._opener.open(recipe, hashing=facts is None))
            return self._until_stopped(opened[-1].stream.chunks())

        started = time.monotonic()
        digest, size = self._destination.write(
            source,
            digest=facts.digest if facts else None,
            size=facts.size if facts else None,
        )
        seconds = time.monotonic() - started
        self._resources.note(f"{recipe.title}: {size / 1e6:,.1f} MB in {seconds:.1f} s")
        return facts or self._learn(recipe, opened[-1], digest, size)

    def _learn(self, recipe: LayerRecipe, layer: OpenLayer, digest: str, size: int) -> LayerFacts:
        """Record the facts of a layer that was made for the first time."""
        for path, state in layer.unchecked.items():
            mark(path, state)
        facts = LayerFacts(
            key=recipe.key,
            digest=digest,
            diff_id=layer.stream.known_diff_id,
            size=size,
            notes=tuple(
                f"{recipe.title}: {text}"
                for pruner in layer.pruners
                for text in pruner.counts.untouched
            ),
        )
        self._facts.put(facts)
        return facts

    def _kept(self, recipe: LayerRecipe, facts: LayerFacts | None) -> LayerFacts:
        """Make a small blob whole, or take it from the cache: reading the base is expensive."""
        path = self._resources.cache / "layers" / f"{recipe.key.removeprefix('sha256:')}.tar.gz"
        data = path.read_bytes() if facts and path.is_file() else b""
        if facts is None or sha256_digest(data) != facts.digest:
            stream = self._opener.open(recipe, hashing=True).stream
            data = b"".join(stream.chunks())
            made = LayerFacts(
                key=recipe.key,
                digest=sha256_digest(data),
                diff_id=stream.known_diff_id,
                size=len(data),
            )
            if facts is not None and made != facts:
                raise IntegrityError(
                    f"{recipe.title} has digest {made.digest}, recorded is {facts.digest}",
                    fix="delete the recorded layer facts (layers.yaml, the cache), build again",
                )
            write_whole(path, data)
            self._facts.put(made)
            facts = made
        copy_blob(self._destination, lambda: iter((data,)), facts.digest, facts.size)
        self._resources.note(f"{recipe.title}: {facts.size / 1e6:,.1f} MB")
        return facts

    def _until_stopped(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._resources.stopping.is_set():
                raise HostError("stopped while making a layer; whole layers are kept")
            yield piece


def copy_blob(destination: Destination, source: OpenSource, digest: str, size: int) -> None:
    """Bring a blob to the destination unless it is there."""
    if not destination.has(digest, size):
        destination.write(source, digest=digest, size=size)
