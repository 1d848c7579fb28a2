"""`audit`: find faults in files, before any GPU does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchproof.audit.catalogue import RULES, markdown
from torchproof.audit.run import audit_image, audit_wheels
from torchproof.audit.run_texts import audit_texts
from torchproof.commands.inputs import Inputs, load_inputs
from torchproof.commands.options import AsJson, MatrixFile, Only
from torchproof.engines.docker import REPOSITORY
from torchproof.errors import Exit, HostError, InputError
from torchproof.index.indexes import cache_dir
from torchproof.index.wheel_store import WheelStore
from torchproof.matrix.expand import DEFAULT, load_matrix, match_ids
from torchproof.matrix.schema import Matrix
from torchproof.model.lock import Lock
from torchproof.model.lock_file import lock_path, read_lock
from torchproof.model.results import Finding, Level

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[IMAGE|DIRECTORY]",
        help="An image of the engine or a registry, an OCI layout, an archive, a directory, or a "
        "Dockerfile. Left out: the cells of the matrix.",
    ),
]
ListRules = Annotated[bool, typer.Option("--list", help="Print all rules.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="With --list: docs/audit-rules.md.")]


def run(
    target: Target = None,
    only: Only = None,
    as_json: AsJson = False,
    list_rules: ListRules = False,
    as_markdown: AsMarkdown = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Audit cells, or anybody's image or directory. Nothing of it is run."""
    if list_rules:
        _list(as_markdown=as_markdown, as_json=as_json)
        return Exit.OK
    if target is not None and only is not None:
        raise InputError("give either a target or --only", fix="leave one of them out")
    if target is not None:
        results = {target: _target(target, matrix)}
    else:
        results = dict(_cells(load_inputs(matrix), only))
    if as_json:
        print(json.dumps({"audits": [_plain(name, found) for name, found in results.items()]}))  # noqa: T201
    else:
        for name, found in results.items():
            _show(name, found)
    faults = any(one.level is Level.ERROR for found in results.values() for one in found)
    return Exit.CELL_FAILED if faults else Exit.OK


def _target(target: str, matrix: Path) -> list[Finding]:
    place = Path(target)
    hosts = load_matrix(matrix).declared_hosts if matrix.is_file() else ()
    if place.is_file() and not _is_archive(place):
        return audit_texts(place)
    if place.is_dir() and not _holds_system(place):
        return audit_texts(place)
    return audit_image(target, hosts)


def _is_archive(place: Path) -> bool:
    with place.open("rb") as file:
        return b"\0" in file.read(1024)


def _holds_system(place: Path) -> bool:
    """Tell a root, an environment or a layout from a folder of Dockerfiles."""
    marks = ("oci-layout", "pyvenv.cfg", "usr", "bin", "etc", "lib", "opt")
    return any((place / mark).exists() for mark in marks) or not any(place.iterdir())


def _cells(inputs: Inputs, only: str | None) -> Iterable[tuple[str, list[Finding]]]:
    """Audit each cell: its image if the engine has it, else those of its wheels that are here."""
    cells = [item for item in inputs.survey() if item.verdict is None]
    chosen = match_ids([item.id for item in cells], only)
    store = WheelStore(cache_dir(), inputs.indexes)
    locked = 0
    for name in chosen:
        place = lock_path(name)
        if not place.is_file():
            continue
        locked += 1
        yield name, _cell(read_lock(place), inputs.matrix, store)
    if not locked:
        raise InputError("no cell has a lock yet", fix="run `python build.py lock` first")


def _cell(lock: Lock, matrix: Matrix, store: WheelStore) -> list[Finding]:
    try:
        return audit_image(f"{REPOSITORY}:{lock.cell}", matrix.declared_hosts, lock=lock)
    except (InputError, HostError):
        paths = {
            wheel.filename: path for wheel in lock.wheels if (path := store.path(wheel)) is not None
        }
        return audit_wheels(lock, paths, matrix.declared_hosts)


def _plain(name: str, findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "name": name,
        "findings": [
            {
                "rule": one.rule,
                "outcome": str(one.level),
                "message": one.message,
                "fix": one.fix,
                "where": one.where,
            }
            for one in findings
        ],
    }


def _show(name: str, findings: Sequence[Finding]) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    order = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2, Level.PASS: 3}
    counts = {level: sum(one.level is level for one in findings) for level in order}
    for one in sorted(findings, key=lambda one: order[one.level]):
        out.print(f"{one.level:8} {one.rule}: {one.message}")
        if one.where:
            out.print(f"         in {one.where}")
        if one.level is not Level.NOTE:
            out.print(f"         fix: {one.fix}")
    out.print(
        f"{name}: {counts[Level.ERROR]} errors, {counts[Level.WARNING]} warnings, "
        f"{counts[Level.NOTE]} notes by {len(RULES)} rules"
    )


def _list(*, as_markdown: bool, as_json: bool) -> None:
    if as_markdown:
        print(markdown(), end="")  # noqa: T201
        return
    if as_json:
        rows = [
            {"id": rule.id, "protects": rule.protects, "remedy": rule.remedy, "source": rule.source}
            for rule in RULES
        ]
        print(json.dumps({"rules": rows}, indent=2))  # noqa: T201
        return
    out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    width = max(len(rule.id) for rule in RULES)
    for rule in RULES:
        out.print(f"{rule.id:{width}}  {rule.protects}")
