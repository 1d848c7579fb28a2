"""The pytest plugin: `pytest probes/` collects the probe scripts, one item a cell and probe.

So users have -k, -x, --lf, -n (with --dist loadgroup: one worker a cell) and --junitxml. Items of
several workers lease their GPUs; results go to the same files as those of `torchproof matrix`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchproof.errors import TorchproofError
from torchproof.model.results import Outcome, ProbeResult
from torchproof.probing.run_probes import Trial, open_trial, run_probe
from torchproof.probing.script import BLOCK, Probe, read_probes
from torchproof.probing.subjects import Choice, find_subjects


class ProbeFailedError(Exception):
    """A probe did not pass."""

    def __init__(self, result: ProbeResult) -> None:
        super().__init__(result.message)
        self.result = result


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of probes."""
    group = parser.getgroup("torchproof", "probe scripts (torchproof)")
    add = group.addoption
    add("--probe-target", default="image", help="image (built cells) or host (present Python)")
    add("--probe-cells", default=None, metavar="GLOB", help="only these cells")
    add("--probe-names", default=None, metavar="A,B", help="only these probes")
    add("--probe-engine", default="auto", help="auto, docker or venv")
    add("--probe-builder", default="docker", help="what built the cells: docker or assemble")
    add("--probe-python", default=None, type=Path, help="host: another Python than this one")
    add("--probe-matrix", default=Path("matrix.yaml"), type=Path, help="the matrix")
    add("--probe-reports", default=Path("reports"), type=Path, help="where results go")
    add("--probe-shm", default=8 * 1024, type=int, metavar="MIB", help="size of /dev/shm")
    add("--probe-ranks-per-gpu", default=1, type=int, help="NCCL ranks on each GPU")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Take probe scripts; leave all other files to others."""
    others = yield
    if file_path.suffix != ".py" or file_path.name.startswith(("_", "test_", "conftest")):
        return others
    if file_path.parent.name != "probes" and not _has_header(file_path):
        return others
    script: pytest.Collector = ProbeScript.from_parent(parent, path=file_path)
    return [script]


def pytest_configure(config: pytest.Config) -> None:
    """Keep what is looked up once a process: what is on trial."""
    config.stash[_TRIALS] = {}


Chosen = tuple[tuple[Probe, bool], ...]
_TRIALS = pytest.StashKey[dict[Path, list[tuple[Trial, Chosen]]]]()


class ProbeScript(pytest.File):
    """One script: an item for each cell and variant."""

    def collect(self) -> Iterator[pytest.Item]:
        """Make the items. Faults of the user's input or the machine end the collection."""
        try:
            mine = {probe.name for probe in read_probes(self.path)}
            for trial, chosen in _trials(self.config, self.path.parent):
                for probe, required in chosen:
                    if probe.name in mine:
                        name = f"{probe.name}[{trial.built.cell}]"
                        yield ProbeItem.from_parent(
                            self, name=name, trial=trial, probe=probe, must=required
                        )
        except TorchproofError as error:
            raise self.CollectError(str(error)) from None


class ProbeItem(pytest.Item):
    """One probe on one cell."""

    def __init__(self, *, trial: Trial, probe: Probe, must: bool, **rest: Any) -> None:
        super().__init__(**rest)
        self.trial, self.probe, self.must = trial, probe, must
        self.add_marker(pytest.mark.xdist_group(trial.built.cell))
        # The runner ends a probe itself, and waiting for a GPU is not the probe's fault.
        self.add_marker(pytest.mark.timeout(0))

    def runtest(self) -> None:
        """Run the probe; a skip stays a skip, and all but a pass is a failure."""
        result = run_probe(self.trial, self.probe, required=self.must)
        self.user_properties += [("outcome", str(result.outcome)), ("code", result.code)]
        if result.outcome is Outcome.SKIP:
            pytest.skip(f"{result.code}: {result.message}")
        if result.outcome is not Outcome.PASS:
            raise ProbeFailedError(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Tell what was seen and what to do; no traceback of the runner."""
        if not isinstance(excinfo.value, ProbeFailedError):
            return super().repr_failure(excinfo, style)
        result = excinfo.value.result
        lines = [f"{result.outcome}: {result.code}: {result.message}"]
        lines += [f"fix: {result.fix}"] if result.fix else []
        lines += [f"log: {result.log}"] if result.log else []
        return "\n".join(lines)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Name the item in reports."""
        return self.path, 0, self.name


def _trials(config: pytest.Config, folder: Path) -> list[tuple[Trial, Chosen]]:
    known = config.stash[_TRIALS]
    if folder not in known:
        choice = Choice(
            target=config.getoption("--probe-target"),
            engine=config.getoption("--probe-engine"),
            builder=config.getoption("--probe-builder"),
            python=config.getoption("--probe-python"),
            matrix=config.getoption("--probe-matrix"),
            only=config.getoption("--probe-cells"),
            names=config.getoption("--probe-names"),
            shm_size=config.getoption("--probe-shm") * 1024**2,
            ranks_per_gpu=config.getoption("--probe-ranks-per-gpu"),
        )
        known[folder] = [
            (
                open_trial(
                    subject.runner,
                    subject.built,
                    subject.lock,
                    folder=folder,
                    reports=config.getoption("--probe-reports"),
                    options=subject.options,
                ),
                subject.chosen,
            )
            for subject in find_subjects(choice, folder)
        ]
    return known[folder]


def _has_header(path: Path) -> bool:
    try:
        return BLOCK.search(path.read_text(encoding="utf-8", errors="replace")) is not None
    except OSError:
        return False
