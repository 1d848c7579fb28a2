"""`audit`: find faults in an image's files, before a GPU is needed."""

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
        "Dockerfile. Default: the cells of the matrix.",
    ),
]
ListRules = Annotated[bool, typer.Option("--list", help="Print all rules.")]
AsMarkdown = Annotated[
    bool, typer.Option("--markdown", help="With --list: print docs/audit-rules.md.")
]


def run(
    target: Target = None,
    only: Only = None,
    as_json: AsJson = False,
    list_rules: ListRules = False,
    as_markdown: AsMarkdown = False,
    matrix: MatrixFile = DEFAULT,
) -> int:
    """Audit cells, or any image or directory. Nothing in it is run."""
    if list_rules:
        _print_rules(as_markdown=as_markdown, as_json=as_json)
        return Exit.OK
    if target is not None and only is not None:
        raise InputError("give either a target or --only", fix="leave one of them out")
    if target is not None:
        results = {target: _audit_target(target, matrix)}
    else:
        results = dict(_audit_cells(load_inputs(matrix), only))
    if as_json:
        print(json.dumps({"audits": [_as_json(name, found) for name, found in results.items()]}))  # noqa: T201
    else:
        for name, found in results.items():
            _print(name, found)
    faults = any(item.level is Level.ERROR for found in results.values() for item in found)
    return Exit.CELL_FAILED if faults else Exit.OK


def _audit_target(target: str, matrix: Path) -> list[Finding]:
    path = Path(target)
    hosts = load_matrix(matrix).declared_hosts if matrix.is_file() else ()
    if path.is_file() and not _is_archive(path):
        return audit_texts(path)
    if path.is_dir() and not _holds_system(path):
        return audit_texts(path)
    return audit_image(target, hosts)


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" in file.read(1024)


def _holds_system(path: Path) -> bool:
    """Tell a root file system, an environment or an OCI layout from a folder of Dockerfiles."""
    marks = ("oci-layout", "pyvenv.cfg", "usr", "bin", "etc", "lib", "opt")
    return any((path / mark).exists() for mark in marks) or not any(path.iterdir())


def _audit_cells(inputs: Inputs, only: str | None) -> Iterable[tuple[str, list[Finding]]]:
    """Audit each cell: its image if the engine has it, else those of its wheels that are cached."""
    cells = [item for item in inputs.survey() if item.verdict is None]
    chosen = match_ids([item.id for item in cells], only)
    store = WheelStore(cache_dir(), inputs.indexes)
    locked = 0
    for name in chosen:
        path = lock_path(name)
        if not path.is_file():
            continue
        locked += 1
        yield name, _audit_cell(read_lock(path), inputs.matrix, store)
    if not locked:
        raise InputError("no cell has a lock yet", fix="run `python build.py lock` first")


def _audit_cell(lock: Lock, matrix: Matrix, store: WheelStore) -> list[Finding]:
    try:
        return audit_image(f"{REPOSITORY}:{lock.cell}", matrix.declared_hosts, lock=lock)
    except (InputError, HostError):
        paths = {
            wheel.filename: path for wheel in lock.wheels if (path := store.path(wheel)) is not None
        }
        return audit_wheels(lock, paths, matrix.declared_hosts)


def _as_json(name: str, findings: Sequence[Finding]) -> dict[str, object]:
    return {
        "name": name,
        "findings": [
            {
                "rule": finding.rule,
                "outcome": str(finding.level),
                "message": finding.message,
                "fix": finding.fix,
                "where": finding.where,
            }
            for finding in findings
        ],
    }


def _print(name: str, findings: Sequence[Finding]) -> None:
    out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    order = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2, Level.PASS: 3}
    counts = {level: sum(finding.level is level for finding in findings) for level in order}
    for finding in sorted(findings, key=lambda finding: order[finding.level]):
        out.print(f"{finding.level:8} {finding.rule}: {finding.message}")
        if finding.where:
            out.print(f"         in {finding.where}")
        if finding.level is not Level.NOTE:
            out.print(f"         fix: {finding.fix}")
    out.print(
        f"{name}: {counts[Level.ERROR]} errors, {counts[Level.WARNING]} warnings, "
        f"{counts[Level.NOTE]} notes by {len(RULES)} rules"
    )


def _print_rules(*, as_markdown: bool, as_json: bool) -> None:
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
