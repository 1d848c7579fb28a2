"""The store of wheels on this machine, which downloads each wheel once.

Locks name an alias, never a URL; the URL of a file is asked of its index when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
from filelock import FileLock
from packaging.utils import parse_wheel_filename

from torchproof._http import NO_ANSWER
from torchproof.errors import CellError, HostError, IntegrityError
from torchproof.index.download import download, sha256_of
from torchproof.index.indexes import Indexes
from torchproof.index.simple_api import TIMEOUT, fetch_page
from torchproof.index.uv import Target, compile_requirements, configured_index
from torchproof.index.verified_files import mark, state_of
from torchproof.model.lock import PYPI, WHEELHOUSE, LockedWheel
from torchproof.model.platforms import AMD64, ARM64, machine_of

Progress = Callable[[int], None]
"""Called with the number of bytes that came in since the last call."""


class WheelStore:
    """Wheels on this machine, each downloaded once, whole, with the right hash.

    Safe for several threads and processes. Files are in `<cache>/wheels/<sha256>/<file name>`.
    """

    def __init__(self, cache: Path, indexes: Indexes) -> None:
        self._wheels = cache / "wheels"
        self._indexes = indexes
        self._urls: dict[tuple[str, str], str] = {}

    @cached_property
    def _client(self) -> httpx.Client:
        return httpx.Client(timeout=TIMEOUT, follow_redirects=True)

    def path(self, wheel: LockedWheel) -> Path | None:
        """Return the path of a wheel that is already here, else None; uses no network."""
        for folder in self._indexes.wheelhouses:
            file = folder / wheel.filename
            if wheel.index == WHEELHOUSE and file.is_file():
                return file
        file = self._cached(wheel)
        return file if file.is_file() and file.stat().st_size == wheel.size else None

    def url(self, wheel: LockedWheel) -> str:
        """Return where a wheel can be downloaded now, by asking its index.

        Raises IndexUnreachableError, or CellError if the index no longer has the file.
        """
        key = (wheel.index, wheel.filename)
        if key not in self._urls:
            self.look_up([wheel])
        if key not in self._urls:
            raise CellError(
                f"{wheel.filename} is not on the index `{wheel.index}` (any more)",
                fix="run `python build.py lock --upgrade` for this cell",
            )
        return self._urls[key]

    def look_up(self, wheels: Iterable[LockedWheel]) -> None:
        """Ask the indexes for the URLs of many wheels at once, in as few requests as possible."""
        groups: dict[tuple[str, str], list[LockedWheel]] = {}
        for wheel in wheels:
            if (wheel.index, wheel.filename) in self._urls:
                continue
            if wheel.index == WHEELHOUSE:
                file = self.path(wheel)
                if file is not None:
                    self._urls[wheel.index, wheel.filename] = file.as_uri()
                continue
            by = _target_python(wheel) if wheel.index == PYPI else wheel.name
            groups.setdefault((wheel.index, by), []).append(wheel)
        for (alias, by), members in groups.items():
            place = self._indexes.url(alias)
            if alias == PYPI:
                found = compile_requirements(
                    [f"{wheel.name}=={wheel.version}" for wheel in members],
                    Target(python=by, platform=_platform(members)),
                    default_index=place,
                    dependencies=False,
                )
                files = [file for package in found for file in package.wheels]
            else:
                assert place is not None
                files = list(fetch_page(place, by, self._client))
            self._urls |= {(alias, file.filename): file.url for file in files}

    def fetch(
        self, wheel: LockedWheel, *, cell: str = "", progress: Progress | None = None
    ) -> Path:
        """Return a wheel's file, downloading it if it is not here; resumes an earlier attempt.

        Raises IntegrityError, naming `cell`, if the bytes are not what the lock promises, and
        IndexUnreachableError.
        """
        ready = self.path(wheel)
        if ready is not None and wheel.index != WHEELHOUSE:
            return ready
        if ready is not None:
            check(wheel, ready, cell)
            return ready
        if wheel.index == WHEELHOUSE:
            raise CellError(
                f"{cell or 'a cell'}: {wheel.filename} is in no wheelhouse of matrix.yaml",
                fix="put the wheel back, or lock the cell again",
            )
        target = self._cached(wheel)
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{target.parent}.lock"):
                if self.path(wheel) is None:
                    self._bring(wheel, target, cell, progress)
        return target

    def _bring(
        self, wheel: LockedWheel, target: Path, cell: str, progress: Progress | None
    ) -> None:
        part = target.with_name(f"{target.name}.part")
        begun = part.is_file()
        download(
            self._client, self._signed(self.url(wheel)), part, size=wheel.size, progress=progress
        )
        before = state_of(part)
        try:
            check(wheel, part, cell)
        except IntegrityError:
            part.unlink()
            if not begun:
                raise
            # What an earlier run left may have been another file; the whole one decides.
            self._bring(wheel, target, cell, progress)
        else:
            part.replace(target)
            after = state_of(target)
            if before[:3] == after[:3]:  # renaming changes the last of the times
                mark(target, after)

    def fetch_all(
        self,
        wheels: Iterable[LockedWheel],
        *,
        cell: str = "",
        progress: Progress | None = None,
        parallel: int = 4,
    ) -> dict[str, Path]:
        """Fetch many wheels side by side; return file name → path. Raises like `fetch`."""
        wanted = list(wheels)
        self.look_up(wheel for wheel in wanted if self.path(wheel) is None)
        with ThreadPoolExecutor(parallel) as pool:
            paths = pool.map(lambda wheel: self.fetch(wheel, cell=cell, progress=progress), wanted)
            return {wheel.filename: path for wheel, path in zip(wanted, paths, strict=True)}

    def adopt(self, url: str, filename: str) -> tuple[Path, str, int]:
        """Download a file whose hash is not known; return its path, sha256 and size in bytes.

        Only a fresh lock may do this: it pins what came.
        """
        draft = self._wheels / "new" / filename
        with _writing(draft):
            draft.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{draft}.lock"):
                download(self._client, self._signed(url), draft, size=None)
                sha256, size = sha256_of(draft), draft.stat().st_size
                target = self._wheels / sha256 / filename
                target.parent.mkdir(parents=True, exist_ok=True)
                draft.replace(target)
        return target, sha256, size

    def measure(self, url: str) -> int | None:
        """Ask for the size of a file in bytes without downloading it; None if unknown."""
        try:
            answer = self._client.head(self._signed(url), headers={"Accept-Encoding": "identity"})
        except NO_ANSWER:
            return None
        length = answer.headers.get("content-length")
        return int(length) if answer.is_success and length else None

    def _signed(self, url: str) -> str:
        """Give a file's URL the user name and password of its index, if it is the same host."""
        parts = urlsplit(url)
        for known in (*self._indexes.urls.values(), self._indexes.pytorch, configured_index()):
            own = urlsplit(known or "")
            if "@" in own.netloc and own.netloc.rpartition("@")[2] == parts.netloc:
                return urlunsplit(parts._replace(scheme=own.scheme, netloc=own.netloc))
        return url

    def _cached(self, wheel: LockedWheel) -> Path:
        return self._wheels / wheel.sha256 / wheel.filename


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostError(
            f"cannot write {target}: {error}",
            fix="free disk space, or set TORCHPROOF_CACHE to another folder",
        ) from error


def check(wheel: LockedWheel, file: Path, cell: str = "") -> None:
    """Compare a file with what the lock promises. Raises IntegrityError, naming both sides."""
    subject = f"{cell}: {wheel.filename}" if cell else wheel.filename
    fix = (
        "do not use this file; if the index changed it on purpose, run "
        "`python build.py lock --upgrade` for this cell and read the difference"
    )
    size = file.stat().st_size
    if size != wheel.size:
        raise IntegrityError(
            f"{subject} has {size} bytes, the lock says {wheel.size}: truncated or replaced",
            fix=fix,
        )
    sha256 = sha256_of(file)
    if sha256 != wheel.sha256:
        raise IntegrityError(
            f"{subject} has sha256 {sha256}, the lock says {wheel.sha256}", fix=fix
        )


def _target_python(wheel: LockedWheel) -> str:
    tags = parse_wheel_filename(wheel.filename)[3]
    exact = sorted(tag.interpreter[2:] for tag in tags if tag.interpreter.startswith("cp3"))
    return f"3.{exact[0][1:]}" if exact and len(exact[0]) > 1 else "3.13"


def _platform(wheels: Iterable[LockedWheel]) -> str:
    arm = any(machine_of(ARM64) in wheel.filename for wheel in wheels)
    return ARM64 if arm else AMD64
