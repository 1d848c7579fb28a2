"""wheel → installed files, the way an installer lays them out. Pure but for reading small members.

Follows the binary distribution format (packaging.python.org/specifications) and PEP 376/627; the
parsing of RECORD, entry points and script templates is pypa/installer's.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import posixpath
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from installer.records import InvalidRecordEntry, RecordEntry, parse_record_file
from installer.scripts import Script
from installer.utils import (
    SCHEME_NAMES,
    canonicalize_name,
    parse_entrypoints,
    parse_metadata_file,
    parse_wheel_filename,
)

from torchproof.assemble.layer.wheel_file import Member, WheelFile, safe_path
from torchproof.assemble.layer.wheel_reader import read
from torchproof.errors import IntegrityError
from torchproof.image.layers import PREFIX

INSTALLER: Final = b"torchproof\n"
_SIGNATURES: Final = ("RECORD.jws", "RECORD.p7s")
_NEW_SCRIPT: Final = "#!python"
_PIP_SCRIPT: Final = re.compile(r"pip3\.\d+")
_LARGEST_METADATA: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One file of an image. `path` is absolute; its content is `member`'s, or `data`.

    `row` is its line of RECORD: (path as RECORD has it, hash, size); hash and size are empty
    where the wheel does not state them.
    """

    path: str
    mode: int
    row: tuple[str, str, str]
    member: Member | None = None
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What installing one wheel leaves: its files, and where their RECORD goes."""

    wheel: WheelFile
    files: tuple[Installed, ...]
    record_path: str

    @property
    def rows_complete(self) -> bool:
        """Tell whether RECORD can be written without reading the files."""
        return all(file.row[1] for file in self.files)


def site_packages(python: str) -> str:
    """Return the site-packages folder of the image's environment (`3.11`)."""
    return f"{PREFIX}/lib/python{python}/site-packages"


def install(
    wheel: WheelFile, python: str, *, installer: bytes = INSTALLER, interpreter: str = "python"
) -> Installation:
    """Map the members of a wheel to files below the prefix.

    `installer` goes to INSTALLER; `interpreter` is the name in the first line of console scripts.
    Raises IntegrityError for an invalid wheel.
    """
    return _Installer(wheel, python, installer, interpreter).run()


def record(rows: list[tuple[str, str, str]], own: str) -> bytes:
    """Return RECORD's text, sorted by path; `own` is RECORD's own path, without hash."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(sorted([*rows, (own, "", "")]))
    return text.getvalue().encode("utf-8")


class _Installer:
    def __init__(self, wheel: WheelFile, python: str, installer: bytes, interpreter: str) -> None:
        self.wheel = wheel
        self.python = python
        self.installer = installer
        self.interpreter = f"{PREFIX}/bin/{interpreter}"
        self.site = site_packages(python)
        self.members = {member.name: member for member in wheel.members}
        self.dist_info = self._dist_info()
        self._check_version()
        self.rows = self._read_record()

    def run(self) -> Installation:
        own = f"{self.dist_info}/RECORD"
        skipped = {own, *(f"{self.dist_info}/{name}" for name in _SIGNATURES)}
        # An installer's own files replace what a wheel may carry under their names.
        skipped |= {f"{self.dist_info}/{name}" for name in ("INSTALLER", "REQUESTED")}
        files = [self._place(one) for one in self.wheel.members if one.name not in skipped]
        taken = {file.path for file in files}
        if len(taken) < len(files):
            paths = sorted(file.path for file in files)
            twice = next(one for one, other in pairwise(paths) if one == other)
            raise self._bad(f"{twice} would be installed twice")
        files += self._scripts(taken)
        for name, data in (("INSTALLER", self.installer), ("REQUESTED", b"")):
            files.append(self._made(f"{self.site}/{self.dist_info}/{name}", data, 0o644))
        return Installation(wheel=self.wheel, files=tuple(files), record_path=f"{self.site}/{own}")

    def _dist_info(self) -> str:
        found = {name.split("/")[0] for name in self.members}
        folders = sorted(name for name in found if name.endswith(".dist-info"))
        try:
            wanted = parse_wheel_filename(self.wheel.path.name)
        except ValueError as error:
            raise self._bad(str(error)) from error
        fitting = [
            one
            for one in folders
            if canonicalize_name(one.removesuffix(".dist-info").rsplit("-", 1)[0])
            == canonicalize_name(wanted.distribution)
        ]
        if len(folders) != 1 or len(fitting) != 1:
            raise self._bad(f"not exactly one .dist-info folder of its name: {folders or 'none'}")
        return fitting[0]

    def _check_version(self) -> None:
        metadata = parse_metadata_file(self._text("WHEEL"))
        version = str(metadata.get("Wheel-Version", ""))
        if version.split(".", maxsplit=1)[0] != "1":
            raise self._bad(f"Wheel-Version {version or 'missing'}; 1.x is known")
        self._text("METADATA")

    def _read_record(self) -> dict[str, RecordEntry]:
        try:
            entries = (
                RecordEntry.from_elements(*row)
                for row in parse_record_file(self._text("RECORD").splitlines())
            )
            return {entry.path: entry for entry in entries}
        except (InvalidRecordEntry, csv.Error) as error:
            raise self._bad(f"RECORD: {error}") from error

    def _place(self, member: Member) -> Installed:
        path, mode, scheme = self._target(member)
        if scheme == "scripts":
            data = read(self.wheel, member)
            fixed = fix_shebang(data)
            if fixed != data:
                return self._made(path, fixed, mode)
        entry = self.rows.get(member.name)
        # A line that cannot be right is computed from the file, like one that is missing.
        plausible = entry and entry.hash_ and entry.size in (None, member.size)
        hash_ = str(entry.hash_) if entry and plausible else ""
        row = (self._relative(path), hash_, str(member.size) if hash_ else "")
        return Installed(path=path, mode=mode, row=row, member=member)

    def _target(self, member: Member) -> tuple[str, int, str]:
        """Return absolute path, mode and scheme of a member."""
        mode = 0o755 if member.executable else 0o644
        first, _, rest = member.name.partition("/")
        if not first.endswith(".data"):
            return f"{self.site}/{member.name}", mode, "purelib"
        scheme, _, rest = rest.partition("/")
        if scheme not in SCHEME_NAMES or not rest:
            raise self._bad(f"{member.name}: {scheme!r} is not a folder of .data")
        match scheme:
            case "scripts":
                return f"{PREFIX}/bin/{rest}", 0o755, scheme
            case "headers":
                name = parse_wheel_filename(self.wheel.path.name).distribution
                return f"{PREFIX}/include/site/python{self.python}/{name}/{rest}", mode, scheme
            case "data":
                return f"{PREFIX}/{rest}", mode, scheme
            case _:
                return f"{self.site}/{rest}", mode, scheme

    def _scripts(self, taken: set[str]) -> list[Installed]:
        if f"{self.dist_info}/entry_points.txt" not in self.members:
            return []
        try:
            entries = sorted(set(parse_entrypoints(self._text("entry_points.txt"))))
        except Exception as error:  # configparser's errors and installer's assertions
            raise self._bad(f"entry_points.txt: {error or 'not understood'}") from error
        made: list[Installed] = []
        for given, module, attribute, section in entries:
            # pip's wheel names the Python it was built with; every installer corrects that.
            name = f"pip{self.python}" if _PIP_SCRIPT.fullmatch(given) else given
            if not safe_path(name) or "/" in name:
                raise self._bad(f"entry point with an unsafe name: {name!r}")
            _, data = Script(name, module, attribute, section).generate(self.interpreter, "posix")
            path = f"{PREFIX}/bin/{name}"
            if path not in taken:
                made.append(self._made(path, data, 0o755))
                taken.add(path)
        return made

    def _made(self, path: str, data: bytes, mode: int) -> Installed:
        row = (self._relative(path), *hashed(data))
        return Installed(path=path, mode=mode, row=row, data=data)

    def _relative(self, path: str) -> str:
        inside = path.removeprefix(f"{self.site}/")
        return inside if inside != path else posixpath.relpath(path, self.site)

    def _text(self, name: str) -> str:
        member = self.members.get(f"{self.dist_info}/{name}")
        if member is None:
            raise self._bad(f"{self.dist_info}/{name} is missing")
        if member.size > _LARGEST_METADATA:
            raise self._bad(f"{self.dist_info}/{name} has {member.size} bytes")
        try:
            return read(self.wheel, member).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(f"{name} is not UTF-8: {error}") from error

    def _bad(self, text: str) -> IntegrityError:
        return IntegrityError(
            f"bad wheel: {text}",
            where=self.wheel.path.name,
            fix="the wheel's publisher is at fault; choose another version",
        )


def fix_shebang(data: bytes) -> bytes:
    """Point a script's `#!python` line at the image's interpreter."""
    if not data.startswith(_NEW_SCRIPT.encode()):
        return data
    line, newline, rest = data.partition(b"\n")
    options = line.rstrip(b"\r").partition(b" ")[2]
    shebang = f"#!{PREFIX}/bin/python".encode() + (b" " + options if options else b"")
    return shebang + newline + rest


def hashed(data: bytes) -> tuple[str, str]:
    """Return hash and size as RECORD has them."""
    return record_hash(hashlib.sha256(data).digest()), str(len(data))


def record_hash(digest: bytes) -> str:
    """Return a sha256 as RECORD writes it: `sha256=` and unpadded URL-safe base64."""
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
