"""The whole road: survey → locks → Dockerfiles → builds → audits → probes → verdicts → report.

Each stage takes the cells that are still open. An error of one cell becomes that cell's verdict and
never stops the others; only wrong input, or an engine that was asked for and does not answer, ends
the run. The report is written again as each cell is done, so that an interrupt loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from torchproof._progress import Progress
from torchproof.audit.facts import ReportedSize
from torchproof.audit.run import audit_built, audit_wheels
from torchproof.engines.build_cells import BuildResult, build_cells
from torchproof.engines.engine import Engine
from torchproof.errors import CellError, InputError, TorchproofError
from torchproof.image.generated_files import write_files
from torchproof.image.layers import make_plan
from torchproof.index.wheel_store import Indexes, WheelStore
from torchproof.matrix.schema import Matrix
from torchproof.model.lock_file import IMAGES
from torchproof.probing.baseline import read_baseline
from torchproof.probing.run_probes import RunOptions, open_trial, run_probes
from torchproof.probing.script import PROBES, Probe, suite_hash
from torchproof.publish.reuse import bring_image, bring_passes
from torchproof.publish.skip import Ledger, PublishedImage
from torchproof.report import make_report, read_report, report_hosts, write_reports
from torchproof.report.models import ReportModel
from torchproof.resolve.relock import Locked, lock_cells
from torchproof.resolve.resolver import Resolver
from torchproof.resolve.survey import Surveyed
from torchproof.run.cell_run import CellRun, Judging, described, verdict_of
from torchproof.upstream.driver_rules import host_table
from torchproof.upstream.facts import Facts
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import ImageNeeds
from torchproof.verdict.decide import Policy, RequiredProbe, audit_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run over a matrix works with. `probes` pairs each with whether it is required."""

    matrix: Matrix
    facts: Facts
    indexes: Indexes
    store: WheelStore
    engine: Engine
    probes: tuple[tuple[Probe, bool], ...]
    images: Path = IMAGES
    reports: Path = Path("reports")
    fresh: bool = False
    """Do again what an earlier run did."""
    ledger: Ledger | None = None
    """What knows the registry that verified images go to; None: nothing is taken from there."""


def policy_of(matrix: Matrix, probes: Iterable[tuple[Probe, bool]]) -> Policy:
    """Return what a cell of the matrix must prove to be verified."""
    required = tuple(
        RequiredProbe(name=probe.name, gpus=probe.gpus) for probe, must in probes if must
    )
    ignored = tuple(item.rule for item in matrix.audit.ignore)
    return Policy(probes=required, rules=matrix.audit.required or ("*",), ignored=ignored)


def sizes_of(reports: Path) -> dict[str, ReportedSize]:
    """Return what the last report in a folder says of the sizes of images, by cell."""
    try:
        report = read_report(reports)
    except InputError:
        return {}  # none yet, or of another version
    return {
        cell.id: ReportedSize(size=cell.image.size_bytes, source=f"report of {report.generated_at}")
        for cell in report.cells
        if cell.image
    }


class Pipeline:
    """One run: the cells as far as they came, and what is said and written on the way."""

    def __init__(self, setting: Setting, cells: Iterable[Surveyed], progress: Progress) -> None:
        self._setting, self._progress = setting, progress
        self._judging = Judging(
            policy=policy_of(setting.matrix, setting.probes),
            host=setting.engine.host(),
            suite_hash=suite_hash(),
            at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        self._runs = {item.id: CellRun(item=item) for item in cells}
        self._published: dict[str, PublishedImage] = {}
        self._before = sizes_of(setting.reports)

    def run(self) -> ReportModel:
        """Take every cell as far as it goes; the report is on disk even after an interrupt."""
        try:
            self._lock()
            self._check_overrides()
            self._ask_registry()
            self._build()
            for run in self._open():
                self._prove(run)
        finally:
            report = self._report()
            write_reports(self._setting.reports, report)
        return report

    def machine_at_fault(self) -> bool:
        """Whether the machine or its network ended the road of a cell that could be tried."""
        errors = [run.error for run in self._runs.values() if run.error is not None]
        return any(not isinstance(error, CellError | InputError) for error in errors)

    def _open(self) -> list[CellRun]:
        return [run for run in self._runs.values() if run.open]

    def _update(self, run: CellRun) -> CellRun:
        self._runs[run.id] = run
        return run

    def _fail(self, run: CellRun, error: TorchproofError) -> None:
        self._progress.done(run.id, str(error))
        self._update(replace(run, error=error))

    def _lock(self) -> None:
        for run in self._runs.values():
            if run.item.verdict is not None:
                self._progress.done(run.id, f"{run.item.verdict.state}: {run.item.verdict.reason}")
        setting = self._setting
        resolver = Resolver(facts=setting.facts, indexes=setting.indexes, store=setting.store)
        items = [run.item for run in self._open()]
        lock_cells(items, resolver, images=setting.images, done=self._locked)

    def _locked(self, locked: Locked) -> None:
        run = self._runs[locked.cell]
        if locked.lock is None:
            assert locked.error is not None
            self._fail(run, locked.error)
            return
        self._progress.done(run.id, "locked" if locked.why else "lock kept")
        try:
            for change in write_files(locked.lock, self._setting.images):
                self._progress.done(run.id, f"{change.path}: written")
        except TorchproofError as error:
            self._fail(run, error)
            return
        self._update(replace(run, lock=locked.lock, note=locked.note))

    def _check_overrides(self) -> None:
        """Audit the wheels of cells that override some, before a build is spent on them."""
        for run in self._open():
            lock = run.lock
            if lock is None or not lock.overrides:
                continue
            self._progress.say(run.id, "audit of its wheels, before the build")
            try:
                paths = self._setting.store.fetch_all(lock.wheels, cell=run.id)
                findings = tuple(audit_wheels(lock, paths, self._setting.matrix.hosts))
            except TorchproofError as error:
                self._fail(run, error)
                continue
            faults = audit_errors(findings, self._judging.policy)
            if faults:
                first = faults[0]
                self._fail(
                    replace(run, findings=findings),
                    CellError(first.message, where=first.where, fix=first.fix),
                )

    def _ask_registry(self) -> None:
        """Take the images that are published for a lock, so that they need not be built again."""
        setting = self._setting
        if setting.ledger is None or setting.fresh or setting.engine.name != "docker":
            return
        for run in self._open():
            if run.lock is None or run.lock.gpus:
                continue
            plan = make_plan(run.lock)
            try:
                here = setting.engine.find(plan, run.lock)
            except TorchproofError:
                return  # the build will say what is wrong with the engine
            self._progress.say(run.id, "asking the registry")
            image = (
                setting.ledger.already_built(plan, run.lock)
                if here
                else bring_image(setting.ledger, run.lock)
            )
            if image is not None:
                self._published[run.id] = image

    def _build(self) -> None:
        setting = self._setting
        locks = [run.lock for run in self._open() if run.lock is not None]
        build_cells(
            setting.engine,
            locks,
            reports=setting.reports,
            images=setting.images,
            say=self._progress.say,
            done=self._built,
        )

    def _built(self, result: BuildResult) -> None:
        run = self._runs[result.cell]
        if result.log.exists():
            log = result.log.relative_to(self._setting.reports).as_posix()
            run = replace(run, log=log)
        if result.error is not None:
            self._fail(run, result.error)
        elif result.built is not None:
            built = result.built
            how = "there already" if built.reused else f"built in {built.seconds:.0f} s"
            self._progress.done(run.id, f"{built.ref}: {how}, {built.size / 1e9:.2f} GB")
            self._update(replace(run, built=built))

    def _prove(self, run: CellRun) -> None:
        """Audit a cell, then probe it: an error of a required rule leaves nothing to probe."""
        assert run.built is not None
        assert run.lock is not None
        self._progress.say(run.id, "audit")
        before = self._before.get(run.id)
        try:
            findings = tuple(
                audit_built(
                    run.built,
                    run.lock,
                    hosts=self._setting.matrix.hosts,
                    before=replace(before, now=run.built.size) if before else None,
                )
            )
            run = self._update(replace(run, findings=findings))
            faults = audit_errors(findings, self._judging.policy)
            if faults:
                self._update(replace(run, probes=()))
            else:
                self._probe(run)
        except TorchproofError as error:
            self._fail(run, error)
        verdict = verdict_of(self._runs[run.id], self._judging)
        self._progress.done(run.id, f"{verdict.state}: {verdict.reason}")
        write_reports(self._setting.reports, self._report())

    def _probe(self, run: CellRun) -> None:
        setting, wishes = self._setting, self._setting.matrix.probes
        assert run.built is not None
        baseline = setting.matrix.folder / wishes.baseline
        trial = open_trial(
            setting.engine,
            run.built,
            run.lock,
            folder=PROBES,
            reports=setting.reports,
            options=RunOptions(
                thresholds=wishes.thresholds,
                baseline=read_baseline(baseline, wishes.bandwidth_tolerance),
                resume=not setting.fresh,
            ),
        )
        published = self._published.get(run.id)
        if setting.ledger is not None and published is not None:
            proven = bring_passes(setting.ledger, trial, published)
            if proven:
                self._progress.done(run.id, f"proven before: {', '.join(proven)}")
        results = []
        for probe, must in setting.probes:
            self._progress.say(run.id, f"probe {probe.name}")
            results += run_probes(trial, [(probe, must)])
        self._update(replace(run, probes=tuple(results)))

    def _report(self) -> ReportModel:
        setting = self._setting
        declared = setting.matrix.hosts
        needs = [
            ImageNeeds(
                cell=run.id,
                cuda=run.item.cell.cuda,
                platform=run.item.cell.platform,
                archs=run.lock.gpus or run.lock.archs,
            )
            for run in self._runs.values()
            if run.lock is not None
        ]
        table = host_table(needs, declared, setting.facts, gpu_table())
        return make_report(
            [described(run, self._judging) for run in self._runs.values()],
            host=self._judging.host,
            suite_hash=self._judging.suite_hash,
            generated_at=self._judging.at,
            hosts=report_hosts(declared, table),
        )
