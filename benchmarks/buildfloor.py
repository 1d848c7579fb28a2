"""What assembling cannot be faster than, and what it takes when nothing is sent or written.

The floor inflates every wheel of a cell and hashes what goes in and what comes out, on all cores.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from isal import igzip_lib

from torchproof.assemble.base_image import from_tar
from torchproof.assemble.build_image import assemble
from torchproof.assemble.layer.wheel_file import DEFLATED, open_wheel
from torchproof.assemble.layer.wheel_reader import CHUNK
from torchproof.assemble.layer_facts import FactsStore
from torchproof.assemble.make_layers import BuildResources
from torchproof.image.bootstrap import ensure_base
from torchproof.index.wheel_store import WheelStore
from torchproof.model.lock import Lock


@dataclass(frozen=True)
class Took:
    """Wall-clock and CPU seconds of this process."""

    seconds: float
    cpu: float


def timed(work: Callable[[], object]) -> Took:
    wall, cpu = time.monotonic(), time.process_time()
    work()
    return Took(time.monotonic() - wall, time.process_time() - cpu)


def floor(lock: Lock, store: WheelStore) -> Took:
    paths = [store.fetch(wheel) for wheel in lock.wheels]
    paths.sort(key=lambda path: -path.stat().st_size)

    def work() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(inflate_and_hash, paths))

    return timed(work)


def inflate_and_hash(path: Path) -> None:
    packed, plain = hashlib.sha256(), hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for member in open_wheel(path).members:
            file.seek(member.offset)
            stream = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
            left = member.packed
            while left:
                data = file.read(min(CHUNK, left))
                left -= len(data)
                packed.update(data)
                if member.method != DEFLATED:
                    plain.update(data)
                    continue
                while True:
                    plain.update(stream.decompress(data, CHUNK))
                    data = b""
                    if stream.needs_input or stream.eof:
                        break


class Nowhere:
    """A destination that hashes what comes and keeps nothing: what assembling alone costs."""

    ref = "nowhere"
    written_bytes = 0

    def current(self) -> str | None:
        return None

    def has(self, digest: str, size: int) -> bool:
        return False

    def stop(self) -> None:
        pass

    def write(
        self,
        source: Callable[[], Iterator[bytes]],
        *,
        digest: str | None = None,
        size: int | None = None,
    ) -> tuple[str, int]:
        hasher, count = hashlib.sha256(), 0
        for chunk in source():
            hasher.update(chunk)
            count += len(chunk)
        return f"sha256:{hasher.hexdigest()}", count

    def finish(self, manifest: bytes, config_digest: str, layers: tuple[str, ...]) -> str:
        return ""


def to_nowhere(lock: Lock, store: WheelStore, cache: Path) -> Took:
    """Assemble a cell of which `cache` knows no layer."""
    resources = BuildResources(store=store, cache=cache, workers=os.cpu_count() or 2)
    facts = FactsStore(cache / "layers")
    tar = ensure_base(lock.base, lock.platform, cache=cache, log=Path(os.devnull))
    base = from_tar(tar, facts)
    return timed(lambda: assemble(lock, base, Nowhere(), resources, facts=facts))
