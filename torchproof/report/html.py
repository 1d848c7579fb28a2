"""reports/index.html: a single file that needs no network, from the report model. Decides nothing.

Jinja2 escapes all text; a content security policy forbids all outside content, and any script but
the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from torchproof.model.results import State, SubjectKind
from torchproof.model.versions import cuda_version, minor_of
from torchproof.report import words
from torchproof.report.models import CellModel, ReportModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Rows are torch minors, columns CUDA versions; several cells may share a place."""

    columns: list[str]
    rows: list[str]
    places: dict[tuple[str, str], list[CellModel]]


def render_html(report: ReportModel) -> str:
    """Return the page. Equal reports give equal pages."""
    environment = Environment(
        loader=PackageLoader("torchproof.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: words.clean(value) if type(value) is str else value,
    )
    environment.filters |= {
        "size": words.size,
        "duration": words.duration,
        "moment": words.moment,
        "short": words.short,
        "cuda": cuda_version,
        "gpus": words.gpus,
        "machine": words.machine,
        "value": words.value,
        "table": words.table,
        "anchor": _anchor,
        "href": _href,
        "is_url": _is_url,
    }
    script = _source(environment, "report.js")
    ids = {cell.id: cell for cell in report.cells}
    return environment.get_template("report.html.j2").render(
        report=report,
        grid=_grid(report.cells),
        counts={state: _count(report, state) for state in words.VERDICTS},
        verdicts=words.VERDICTS,
        outcomes=words.OUTCOMES,
        answers=words.ANSWERS,
        layer_users=_layer_users(report.cells),
        environments=[
            cell.id
            for cell in report.cells
            if cell.evidence and cell.evidence.subject is SubjectKind.ENVIRONMENT
        ],
        nearest=lambda name: next((i for i in ids if i == name or i.startswith(f"{name}-")), ""),
        cells_by_id=ids,
        host_cells={answer.cell for host in report.hosts for answer in host.answers},
        style=Markup(_source(environment, "report.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _source(environment: Environment, name: str) -> str:
    return PackageLoader("torchproof.report").get_source(environment, name)[0]


def _grid(cells: list[CellModel]) -> _Grid:
    places: dict[tuple[str, str], list[CellModel]] = defaultdict(list)
    for cell in cells:
        places[minor_of(cell.torch), cell.cuda].append(cell)
    return _Grid(
        columns=sorted(
            {cell.cuda for cell in cells}, key=lambda name: words.order(cuda_version(name))
        ),
        rows=sorted({minor_of(cell.torch) for cell in cells}, key=words.order),
        places=dict(places),
    )


def _count(report: ReportModel, state: State) -> int:
    return sum(cell.verdict is state for cell in report.cells)


def _layer_users(cells: list[CellModel]) -> dict[str, list[str]]:
    users: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        layers = cell.image.layers if cell.image else []
        for digest in dict.fromkeys(layer.digest for layer in layers):
            users[digest].append(cell.id)
    return dict(users)


def _anchor(cell: str) -> str:
    return "cell-" + quote(cell, safe="")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and not set(text) & set(" \n\t")


def _href(path: str) -> str:
    """Return a link to a file below the reports directory; empty for a path that leads out."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts:
        return ""
    return "./" + quote(str(pure))
