"""The files of a report: read report.json with helpful errors, write all five files at once."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from torchproof.errors import HostError, InputError
from torchproof.report.html import render_html
from torchproof.report.junit import render_junit
from torchproof.report.models import SCHEMA_VERSION, ReportModel
from torchproof.report.prometheus import render_prometheus
from torchproof.report.text import render_markdown

REPORT = "report.json"


def write_reports(folder: Path, report: ReportModel) -> None:
    """Write index.html, report.json, report.md, junit.xml and metrics.prom.

    All are rendered before the first is written, and each replaces the old file in one step, so
    that a reader never sees half a file. Raises HostError if the folder cannot be written.
    """
    texts = {
        "index.html": render_html(report),
        "report.md": render_markdown(report),
        "junit.xml": render_junit(report),
        "metrics.prom": render_prometheus(report),
        REPORT: report_json(report),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            _replace(folder / name, text)
    except OSError as error:
        raise HostError(
            f"the report cannot be written: {error.strerror or error}",
            where=str(folder),
            fix="make the folder writable, or free some space",
        ) from error


def report_json(report: ReportModel) -> str:
    """Return report.json; numbers that JSON cannot express (NaN, infinity) become null."""
    return report.model_dump_json(by_alias=True, indent=2) + "\n"


def read_report(path: Path) -> ReportModel:
    """Read a report.json, or the one in a folder. Raises InputError with file and field."""
    file = path / REPORT if path.is_dir() else path
    where = str(file)
    again = "run `python build.py matrix` there again, and copy its whole reports folder"
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError(
            "there is no report here" if path.is_dir() else "no such file or folder",
            where=where,
            fix="give the reports folder of a finished run",
        ) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not a complete JSON file: {error.msg}", where=f"{where}:{error.lineno}", fix=again
        ) from None
    except (UnicodeDecodeError, RecursionError):
        raise InputError("is not JSON text in UTF-8", where=where, fix=again) from None
    if not isinstance(data, dict) or "schema" not in data:
        raise InputError("is not a report: it has no `schema`", where=where, fix=again)
    if data["schema"] != SCHEMA_VERSION:
        raise InputError(
            f"has schema {data['schema']!r}, this version reads {SCHEMA_VERSION!r}",
            where=where,
            fix="generate it again with the same version of torchproof",
        )
    try:
        return ReportModel.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{field}: {first['msg']}", where=where, fix=again) from None


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.close()
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
