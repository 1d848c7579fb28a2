"""The whole road: survey → locks → Dockerfiles → builds → audits → probes → verdicts → report.

Each stage takes the cells that are still open. An error of one cell becomes that cell's verdict and
never stops the others; only wrong input, or an engine that was asked for and does not answer, ends
the run. The report is written again as each cell is done, so that an interrupt loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from torchproof._progress import Progress
from torchproof.audit.run import audit_built, audit_wheels
from torchproof.engines.build_cells import BuildResult, build_cells
from torchproof.errors import CellError, InputError, TorchproofError
from torchproof.image.generated_files import write_files
from torchproof.probing.baseline import read_baseline
from torchproof.probing.run_probes import RunOptions, open_trial, run_probes
from torchproof.probing.script import PROBES, suite_hash
from torchproof.publish.ledger import PublishedImage
from torchproof.publish.reuse import pull_published_image, reuse_passes
from torchproof.report import make_report, report_hosts, write_reports
from torchproof.report.models import ReportModel
from torchproof.resolve.relock import Locked, lock_cells
from torchproof.resolve.resolver import Resolver
from torchproof.resolve.survey import SurveyedCell
from torchproof.run.cell_run import CellRun, VerdictContext, cell_model, verdict_of
from torchproof.run.settings import RunSettings, policy_of, sizes_of
from torchproof.upstream.driver_rules import host_table
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import ImageNeeds
from torchproof.verdict.decide import audit_errors


class Pipeline:
    """One run: how far each cell got, and what is printed and written on the way."""

    def __init__(
        self, settings: RunSettings, cells: Iterable[SurveyedCell], progress: Progress
    ) -> None:
        self._settings, self._progress = settings, progress
        self._context = VerdictContext(
            policy=policy_of(settings.matrix, settings.probes),
            host=settings.engine.host(),
            suite_hash=suite_hash(),
            at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        self._runs = {cell.id: CellRun(surveyed=cell) for cell in cells}
        self._published: dict[str, PublishedImage] = {}
        self._before = sizes_of(settings.reports)

    def run(self) -> ReportModel:
        """Take every cell as far as it can go; the report is on disk even after an interrupt."""
        try:
            self._lock()
            self._check_overrides()
            self._ask_registry()
            self._build()
            for run in self._open():
                self._prove(run)
        finally:
            report = self._report()
            write_reports(self._settings.reports, report)
        return report

    def machine_at_fault(self) -> bool:
        """Tell whether the machine or its network stopped a cell that could be tried."""
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
            if run.surveyed.verdict is not None:
                self._progress.done(
                    run.id, f"{run.surveyed.verdict.state}: {run.surveyed.verdict.reason}"
                )
        settings = self._settings
        resolver = Resolver(facts=settings.facts, indexes=settings.indexes, store=settings.store)
        cells = [run.surveyed for run in self._open()]
        lock_cells(cells, resolver, images=settings.images, done=self._record_lock)

    def _record_lock(self, locked: Locked) -> None:
        run = self._runs[locked.cell]
        if locked.lock is None:
            assert locked.error is not None
            self._fail(run, locked.error)
            return
        self._progress.done(run.id, "locked" if locked.why else "lock kept")
        try:
            for change in write_files(locked.lock, self._settings.images):
                self._progress.done(run.id, f"{change.path}: written")
        except TorchproofError as error:
            self._fail(run, error)
            return
        self._update(replace(run, lock=locked.lock, note=locked.note))

    def _check_overrides(self) -> None:
        """Audit the wheels of cells with overrides, before a build is spent on them."""
        for run in self._open():
            lock = run.lock
            if lock is None or not lock.overrides:
                continue
            self._progress.say(run.id, "auditing its wheels before the build")
            try:
                paths = self._settings.store.fetch_all(lock.wheels, cell=run.id)
                findings = tuple(audit_wheels(lock, paths, self._settings.matrix.declared_hosts))
            except TorchproofError as error:
                self._fail(run, error)
                continue
            faults = audit_errors(findings, self._context.policy)
            if faults:
                first = faults[0]
                self._fail(
                    replace(run, findings=findings),
                    CellError(first.message, where=first.where, fix=first.fix),
                )

    def _ask_registry(self) -> None:
        """Take images that are published for a lock, so that they need not be built again."""
        settings = self._settings
        if settings.ledger is None or settings.fresh or settings.engine.name != "docker":
            return
        for run in self._open():
            if run.lock is None or run.lock.gpus:
                continue
            try:
                here = settings.engine.find(run.lock)
            except TorchproofError:
                return  # the build will say what is wrong with the engine
            self._progress.say(run.id, "asking the registry")
            image = (
                settings.ledger.already_built(run.lock)
                if here
                else pull_published_image(settings.ledger, run.lock)
            )
            if image is not None:
                self._published[run.id] = image

    def _build(self) -> None:
        settings = self._settings
        locks = [run.lock for run in self._open() if run.lock is not None]
        build_cells(
            settings.engine,
            locks,
            reports=settings.reports,
            images=settings.images,
            say=self._progress.say,
            done=self._record_build,
        )

    def _record_build(self, result: BuildResult) -> None:
        run = self._runs[result.cell]
        if result.log.exists():
            log = result.log.relative_to(self._settings.reports).as_posix()
            run = replace(run, log=log)
        if result.error is not None:
            self._fail(run, result.error)
        elif result.built is not None:
            built = result.built
            how = "already built" if built.reused else f"built in {built.seconds:.0f} s"
            self._progress.done(run.id, f"{built.ref}: {how}, {built.size / 1e9:.2f} GB")
            self._update(replace(run, built=built))

    def _prove(self, run: CellRun) -> None:
        """Audit a cell, then probe it, unless a required rule reports an error."""
        assert run.built is not None
        assert run.lock is not None
        self._progress.say(run.id, "auditing")
        before = self._before.get(run.id)
        try:
            findings = tuple(
                audit_built(
                    run.built,
                    run.lock,
                    hosts=self._settings.matrix.declared_hosts,
                    before=replace(before, now=run.built.size) if before else None,
                )
            )
            run = self._update(replace(run, findings=findings))
            faults = audit_errors(findings, self._context.policy)
            if faults:
                self._update(replace(run, probes=()))
            else:
                self._probe(run)
        except TorchproofError as error:
            self._fail(run, error)
        verdict = verdict_of(self._runs[run.id], self._context)
        self._progress.done(run.id, f"{verdict.state}: {verdict.reason}")
        write_reports(self._settings.reports, self._report())

    def _probe(self, run: CellRun) -> None:
        settings, wanted = self._settings, self._settings.matrix.probes
        assert run.built is not None
        baseline = settings.matrix.folder / wanted.baseline
        trial = open_trial(
            settings.engine,
            run.built,
            run.lock,
            folder=PROBES,
            reports=settings.reports,
            options=RunOptions(
                thresholds=wanted.thresholds,
                baseline=read_baseline(baseline, wanted.bandwidth_tolerance),
                resume=not settings.fresh,
            ),
        )
        published = self._published.get(run.id)
        if settings.ledger is not None and published is not None:
            proven = reuse_passes(settings.ledger, trial, published)
            if proven:
                self._progress.done(run.id, f"proven before: {', '.join(proven)}")
        results = []
        for probe, required in settings.probes:
            self._progress.say(run.id, f"probing {probe.name}")
            results += run_probes(trial, [(probe, required)])
        self._update(replace(run, probes=tuple(results)))

    def _report(self) -> ReportModel:
        settings = self._settings
        declared = settings.matrix.declared_hosts
        needs = [
            ImageNeeds(
                cell=run.id,
                cuda=run.surveyed.cell.cuda,
                platform=run.surveyed.cell.platform,
                archs=run.lock.gpus or run.lock.archs,
            )
            for run in self._runs.values()
            if run.lock is not None
        ]
        table = host_table(needs, declared, settings.facts, gpu_table())
        return make_report(
            [cell_model(run, self._context) for run in self._runs.values()],
            host=self._context.host,
            suite_hash=self._context.suite_hash,
            generated_at=self._context.at,
            hosts=report_hosts(declared, table),
        )
