"""Facts of layers on disk: a layer, named by its digest, is read once on a machine. An edge."""

from __future__ import annotations

import hashlib
import inspect as inspection
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isal import igzip

from torchproof.assemble.layer import fatbin
from torchproof.audit import facts
from torchproof.audit.facts import Detail, FileEntry, FileKind
from torchproof.audit.reading import elf_facts, elf_file
from torchproof.audit.reading import file_detail as inspect
from torchproof.audit.reading import layer_scan as layers
from torchproof.audit.reading.elf_facts import ElfFacts, Symbol
from torchproof.audit.reading.layer_scan import LayerScan
from torchproof.image import compression, layer_tar
from torchproof.index.indexes import cache_dir
from torchproof.model.results import Finding, Level


def code_version() -> str:
    """Name the code that makes facts: facts that other code made are not used."""
    digest = hashlib.sha256()
    makers = (compression, elf_facts, elf_file, facts, fatbin, inspect, layer_tar, layers)
    for module in makers:
        digest.update(inspection.getsource(module).encode())
    return digest.hexdigest()[:16]


class FactCache:
    """Scans of layers by name. A file that cannot be read counts as absent, and is made again."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or cache_dir() / "audit") / code_version()

    def get(self, name: str, make: Callable[[], LayerScan]) -> LayerScan:
        """Return the scan of that name; make and keep it, unless reading it met a problem."""
        place = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()}.json.gz"
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError):
            data = igzip.decompress(place.read_bytes())  # type: ignore[no-untyped-call]
            return _load(json.loads(data))
        scan = make()
        if not scan.problems:
            self._write(place, scan)
        return scan

    def _write(self, place: Path, scan: LayerScan) -> None:
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(igzip.compress(json.dumps(_dump(scan)).encode(), 1))
            Path(temporary).replace(place)


def _dump(scan: LayerScan) -> dict[str, Any]:
    return {
        "entries": [
            [e.path, e.kind, e.mode, e.uid, e.gid, e.size, e.target, e.inode]
            for e in scan.entries.values()
        ],
        "details": {path: _dump_detail(detail) for path, detail in scan.details.items()},
        "removed": scan.removed,
        "opaque": scan.opaque,
        "problems": [
            [one.rule, one.level, one.message, one.fix, one.where] for one in scan.problems
        ],
        "size": scan.size,
    }


def _dump_detail(detail: Detail) -> list[Any]:
    found = detail.elf
    code: dict[str, Any] | None = None
    if found is not None:
        code = {
            "machine": found.machine,
            "bits": found.bits,
            "kind": found.kind,
            "interpreter": found.interpreter,
            "soname": found.soname,
            "needed": found.needed,
            "rpath": found.rpath,
            "runpath": found.runpath,
            "version_needs": {file: sorted(names) for file, names in found.version_needs.items()},
            "version_defs": sorted(found.version_defs),
            "undefined": [[s.name, s.version, s.file, s.weak] for s in found.undefined],
            "defined": "\n".join(sorted(found.defined)),
            "mentions": sorted(found.mentions),
        }
    return [detail.text, code, detail.archs, detail.emptied, detail.broken]


def _load(data: dict[str, Any]) -> LayerScan:
    return LayerScan(
        entries={
            path: FileEntry(
                path=path,
                kind=FileKind(kind),
                mode=mode,
                uid=uid,
                gid=gid,
                size=size,
                target=target,
                inode=inode,
            )
            for path, kind, mode, uid, gid, size, target, inode in data["entries"]
        },
        details={path: _load_detail(row) for path, row in data["details"].items()},
        removed=data["removed"],
        opaque=data["opaque"],
        problems=[
            Finding(rule=rule, level=Level(level), message=message, fix=fix, where=where)
            for rule, level, message, fix, where in data["problems"]
        ],
        size=data["size"],
    )


def _load_detail(row: list[Any]) -> Detail:
    text, code, archs, emptied, broken = row
    found: ElfFacts | None = None
    if code is not None:
        found = ElfFacts(
            machine=code["machine"],
            bits=code["bits"],
            kind=code["kind"],
            interpreter=code["interpreter"],
            soname=code["soname"],
            needed=tuple(code["needed"]),
            rpath=tuple(code["rpath"]),
            runpath=tuple(code["runpath"]),
            version_needs={file: frozenset(names) for file, names in code["version_needs"].items()},
            version_defs=frozenset(code["version_defs"]),
            undefined=tuple(
                Symbol(name=name, version=version, file=file, weak=weak)
                for name, version, file, weak in code["undefined"]
            ),
            defined=frozenset(filter(None, code["defined"].split("\n"))),
            mentions=frozenset(code["mentions"]),
        )
    return Detail(text=text, elf=found, archs=tuple(archs), emptied=emptied, broken=broken)
