"""Collect the full logs of several runs beside one merged report. Only files that it links to."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from torchproof.errors import HostError
from torchproof.report.models import ReportModel


def gather_logs(sources: Sequence[tuple[Path, ReportModel]], target: Path) -> list[ReportModel]:
    """Copy the logs of each report's folder into `target`; return the reports with new links.

    A log keeps its path, unless runs have different logs at one path: then part of its digest is
    added to each name. A link to a missing file, or to one outside the folder, is dropped.
    Raises HostError if a log cannot be copied.
    """
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    digests: dict[tuple[Path, str], str] = {}
    try:
        for folder, report in sources:
            for log in _logs(report):
                file = _inside(folder, log)
                if file is not None:
                    digest = _digest(file)
                    digests[folder, log] = digest
                    found[log][digest] = file
        names = {
            (log, digest): log if len(files) == 1 else _with_digest(log, digest)
            for log, files in found.items()
            for digest in files
        }
        for (log, digest), name in names.items():
            _copy(found[log][digest], target / name)
    except OSError as error:
        raise HostError(f"a log cannot be copied: {error}", where=str(target)) from error

    def renamed(folder: Path) -> Callable[[str], str]:
        return lambda log: names.get((log, digests.get((folder, log), "")), "")

    return [_relink(report, renamed(folder)) for folder, report in sources]


def _logs(report: ReportModel) -> set[str]:
    logs = {cell.build.log for cell in report.cells if cell.build}
    for cell in report.cells:
        for probes in (cell.probes, *(other.probes for other in cell.other_evidence)):
            logs |= {probe.log for probe in probes}
    return logs - {""}


def _relink(report: ReportModel, name: Callable[[str], str]) -> ReportModel:
    data = report.model_dump(by_alias=True)
    for cell in data["cells"]:
        for item in (
            *([cell["build"]] if cell["build"] else []),
            *cell["probes"],
            *(probe for other in cell["other_evidence"] for probe in other["probes"]),
        ):
            item["log"] = name(item["log"])
    return ReportModel.model_validate(data)


def _inside(folder: Path, log: str) -> Path | None:
    if "\0" in log:
        return None
    file = (folder / log).resolve()
    return file if file.is_relative_to(folder.resolve()) and file.is_file() else None


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _with_digest(log: str, digest: str) -> str:
    path = PurePosixPath(log)
    return str(path.with_name(f"{path.stem}-{digest[:8]}{path.suffix}"))


def _copy(file: Path, target: Path) -> None:
    if target.exists() and target.samefile(file):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
