"""Run probes on a built cell: leases, the container or process, the result, the store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from torchproof._process import RunResult
from torchproof.engines.engine import RunSpec
from torchproof.errors import HostError, TorchproofError
from torchproof.image.layers import PREFIX
from torchproof.model.lock import Lock
from torchproof.model.results import Built, Gpu, Host, Outcome, ProbeResult, SubjectKind
from torchproof.model.versions import cuda_version
from torchproof.probing.baseline import Baseline, judge
from torchproof.probing.diagnosis import diagnose
from torchproof.probing.leases import lease
from torchproof.probing.outcome import interpret
from torchproof.probing.script import Probe, suite_hash
from torchproof.probing.store import FINAL, ProbeStore
from torchproof.upstream.facts import load_facts

INSIDE = "/opt/torchproof/probes"
"""Where the probe scripts appear in a container."""
RANDOM_USER = "1000700000:0"
"""A uid without a passwd entry, as OpenShift gives."""
KEEP_VARIABLES = (
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
)
"""Set where NVLink multicast would harm the host: they go into every container unchanged."""


class Runner(Protocol):
    """What probes run on: an engine, or the present Python."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def host(self) -> Host:
        """Describe the machine."""
        ...

    def run(self, built: Built, spec: RunSpec) -> RunResult:
        """Run one command in what was built."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How probes are run. `shm_size` is bytes; `thresholds` are probe → name → value."""

    shm_size: int = 8 * 1024**3
    ranks_per_gpu: int = 1
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    baseline: Baseline = field(default_factory=Baseline)
    lease_timeout: float = 3600.0
    resume: bool = True


def result_key(built: Built, folder: Path, host: Host, options: RunOptions) -> dict[str, object]:
    """Everything that a result depends on, in JSON values."""
    return {
        "digest": built.digest,
        "suite": suite_hash(folder),
        "driver": host.driver,
        "gpus": sorted(gpu.model for gpu in host.gpus),
        "shm_size": options.shm_size,
        "ranks_per_gpu": options.ranks_per_gpu,
        "thresholds": {name: dict(values) for name, values in options.thresholds.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One cell on trial: what probes run on, with what, and where results go."""

    runner: Runner
    built: Built
    lock: Lock | None
    host: Host
    options: RunOptions
    store: ProbeStore


def open_trial(
    runner: Runner,
    built: Built,
    lock: Lock | None,
    *,
    folder: Path,
    reports: Path,
    options: RunOptions | None = None,
) -> Trial:
    """Prepare a trial; `folder` holds the probe scripts. `lock` is None where none exists."""
    options = options or RunOptions()
    host = runner.host()
    return Trial(
        runner=runner,
        built=built,
        lock=lock,
        host=host,
        options=options,
        store=ProbeStore(reports, built.cell, result_key(built, folder, host, options)),
    )


def run_probes(
    trial: Trial,
    chosen: Sequence[tuple[Probe, bool]],
    *,
    on_result: Callable[[ProbeResult, bool], None] | None = None,
) -> list[ProbeResult]:
    """Run probes one after the other on one cell; returns their results in the same order.

    `chosen` pairs each probe with whether the verdict requires it (`select_probes`). Results are
    kept as they come; those that hold already are not run again. `on_result` gets each result and
    whether it was kept from before. A fault of one probe never stops the others; an interrupt
    goes through.
    """
    results: list[ProbeResult] = []
    for probe, required in chosen:
        before = trial.store.load().get(probe.name) if trial.options.resume else None
        kept = before is not None and before.outcome in FINAL
        if before is not None and kept:
            result = judge(replace(before, required=required), trial.options.baseline)
        else:
            result = run_probe(trial, probe, required=required)
        results.append(result)
        if on_result:
            on_result(result, kept)
    return results


def run_probe(trial: Trial, probe: Probe, *, required: bool) -> ProbeResult:
    """Run one probe, waiting for the GPUs it needs, and keep its result and log."""
    host, options = trial.host, trial.options
    result = _skipped(probe, required, trial.built, host)
    if result is None:
        count = len(host.gpus) if probe.all_gpus else min(probe.gpus, len(host.gpus))
        ids = gpu_ids(host)
        try:
            with lease(tuple(ids), count, timeout=options.lease_timeout) as held:
                spec = run_spec(probe, trial.built, trial.lock, held, options)
                run = trial.runner.run(trial.built, spec)
            result = interpret(
                probe,
                run,
                required=required,
                host=replace(host, gpus=tuple(ids[gpu] for gpu in held)),
                ranks_per_gpu=options.ranks_per_gpu,
                log=trial.store.write_log(probe.name, _log_text(spec, run)),
            )
        except TorchproofError as error:
            result = _could_not_run(probe, required, host, error)
    # Kept as measured: a baseline that is recorded later judges it again.
    trial.store.save(result)
    return judge(result, options.baseline)


def run_spec(
    probe: Probe, built: Built, lock: Lock | None, gpus: tuple[str, ...], options: RunOptions
) -> RunSpec:
    """Say how the runner has to start one probe."""
    in_image = built.subject is SubjectKind.IMAGE
    script = f"{INSIDE}/{probe.path.name}" if in_image else str(probe.path)
    env = {
        "TORCHPROOF_TIMEOUT": str(probe.timeout),
        "TORCHPROOF_LOCK": json.dumps(expectations(lock, built)),
        "TORCHPROOF_RANKS_PER_GPU": str(options.ranks_per_gpu),
        "TORCHPROOF_THRESHOLDS": json.dumps(dict(options.thresholds.get(probe.name, {}))),
        "TORCHPROOF_SUBJECT": str(built.subject),
        "PYTHONUNBUFFERED": "1",
    }
    env |= {name: os.environ[name] for name in KEEP_VARIABLES if name in os.environ}
    shm = options.shm_size if probe.shm_mib is None else probe.shm_mib * 1024**2
    return RunSpec(
        command=("python", script, *probe.args),
        env=env,
        gpus=gpus,
        shm_size=shm,
        user=RANDOM_USER if probe.random_uid else None,
        mounts={probe.path.parent: INSIDE} if in_image else {},
        timeout=probe.timeout,
        name=f"torchproof-{built.cell}-{probe.name}",
    )


def expectations(lock: Lock | None, built: Built) -> dict[str, object]:
    """What a script may hold its findings against; empty values are not compared."""
    if lock is None:
        return {}
    facts = load_facts()
    return {
        "torch": lock.torch,
        "cuda": lock.cuda,
        "cudnn": lock.cudnn,
        "nccl": lock.nccl,
        "triton": lock.triton,
        "python": lock.python,
        "archs": list(lock.gpus or lock.archs),
        "slim": bool(lock.gpus),
        "driver_floor": lock.driver_floor,
        "toolkit_driver": facts.toolkit_driver.get(cuda_version(lock.cuda), ""),
        "prefix": PREFIX if built.subject is SubjectKind.IMAGE else built.ref,
        "compile": lock.compile,
    }


def gpu_ids(host: Host) -> dict[str, Gpu]:
    """Name each GPU as an engine and CUDA_VISIBLE_DEVICES take it: by UUID, else by index."""
    return {gpu.uuid or str(index): gpu for index, gpu in enumerate(host.gpus)}


def _skipped(probe: Probe, required: bool, built: Built, host: Host) -> ProbeResult | None:
    if len(host.gpus) < probe.min_gpus:
        here = f"{len(host.gpus)} GPU" if host.gpus else "no GPU"
        code, why = "too_few_gpus", f"needs {probe.gpus} GPU; this host has {here}"
    elif probe.container_only and built.subject is not SubjectKind.IMAGE:
        code, why = "no_container", "applies only to a container, and this is not one"
    else:
        return None
    return ProbeResult(
        name=probe.name,
        outcome=Outcome.SKIP,
        code=code,
        seconds=0.0,
        message=why,
        required=required,
        host=host,
    )


def _could_not_run(probe: Probe, required: bool, host: Host, error: TorchproofError) -> ProbeResult:
    """The engine could not run the script: a fault of the host, unless the cell is to blame."""
    known = diagnose(error.message)
    at_host = isinstance(error, HostError) or (known is not None and known.host_fault)
    return ProbeResult(
        name=probe.name,
        outcome=Outcome.HOST_FAULT if at_host else Outcome.FAIL,
        code=known.code if known else ("engine" if at_host else "not_started"),
        seconds=0.0,
        message=f"{known.message} ({error.message})" if known else error.message,
        fix=known.fix if known else error.fix,
        required=required,
        host=host,
    )


def _log_text(spec: RunSpec, run: RunResult) -> str:
    ended = "ran into its timeout" if run.exit_code is None else f"exit code {run.exit_code}"
    return (
        f"command: {' '.join(spec.command)}\ngpus: {', '.join(spec.gpus) or 'none'}\n"
        f"{ended} after {run.seconds:.1f} s\n\n--- standard output ---\n{run.stdout}\n"
        f"--- standard error ---\n{run.stderr}"
    )
