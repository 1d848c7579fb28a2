"""Small wheels, well-formed or not, for tests."""

from __future__ import annotations

import base64
import hashlib
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "demo",
    version: str = "1.0",
    entry_points: str = "",
    stored: bool = False,
    executable: tuple[str, ...] = (),
    record: str | None = None,
    descriptors: bool = False,
) -> Path:
    """Write NAME-VERSION-py3-none-any.whl; `descriptors` puts sizes after the data, as pipes do."""
    info = f"{name}-{version}.dist-info"
    everything = dict(files)
    everything[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\n".encode()
    everything[f"{info}/WHEEL"] = WHEEL
    if entry_points:
        everything[f"{info}/entry_points.txt"] = entry_points.encode()
    lines = "".join(record_line(*item) for item in everything.items()) + f"{info}/RECORD,,\n"
    everything[f"{info}/RECORD"] = (lines if record is None else record).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED

    def fill(archive: zipfile.ZipFile) -> None:
        for member, data in everything.items():
            entry = zipfile.ZipInfo(member, (2024, 1, 1, 0, 0, 0))
            mode = 0o755 if member in executable else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = method
            archive.writestr(entry, data)

    if descriptors:
        with path.open("wb") as file, zipfile.ZipFile(_Pipe(file), "w") as archive:  # type: ignore[arg-type]
            fill(archive)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            fill(archive)
    return path


class _Pipe:
    """A file that cannot seek."""

    def __init__(self, file: object) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return self._file.write(data)  # type: ignore[attr-defined,no-any-return]

    def flush(self) -> None:
        self._file.flush()  # type: ignore[attr-defined]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
