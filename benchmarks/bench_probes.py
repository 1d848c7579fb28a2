"""What the harness adds to a probe: `make bench-probes`.

Runs each CPU probe on a built cell, in the venv engine. A probe's script tells how long it ran
(`script_seconds`, with its `import torch`); the harness's share is all the rest of what the runner
waited: lease, process, interpreter, reading, diagnosis and storing of the result.
Fails if the median share is 1 s or more. The first argument names the cell.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from torchproof.errors import TorchproofError
from torchproof.probing.run_probes import RunOptions, open_trial, run_probe
from torchproof.probing.script import PROBES
from torchproof.probing.subjects import Choice, find_subjects

SECONDS = 1.0
CELL = "2.7.1-cu126-py311"


def main() -> int:
    """Measure, print, and judge."""
    cell = (sys.argv[1:2] or [CELL])[0]
    try:
        subject = find_subjects(Choice(engine="venv", only=cell), PROBES)[0]
    except TorchproofError as error:
        print(f"{error}: `python build.py build --engine venv --only {cell}` first")
        return 2
    shares: list[float] = []
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{subject.built.cell}, {os.cpu_count()} cores, load {load}; seconds:\n")
    print("| probe | outcome | whole | import torch | script without it | harness |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="torchproof-bench-") as folder:
        trial = open_trial(
            subject.runner,
            subject.built,
            subject.lock,
            folder=PROBES,
            reports=Path(folder),
            options=RunOptions(resume=False),
        )
        for probe, required in subject.chosen:
            if probe.min_gpus:
                continue
            start = time.perf_counter()
            result = run_probe(trial, probe, required=required)
            whole = time.perf_counter() - start
            script = result.metrics.get("script_seconds")
            loading = result.metrics.get("import_torch_seconds", 0.0)
            name = f"| {probe.name} | {result.outcome} | {whole:.2f} |"
            if not isinstance(script, (int, float)) or not isinstance(loading, (int, float)):
                print(f"{name} | | not measured: {result.code} |", flush=True)
                continue
            shares.append(whole - script)
            print(f"{name} {loading:.2f} | {script - loading:.2f} | {whole - script:.2f} |")
    if not shares:
        print("no probe told how long it ran")
        return 2
    print(f"\nmedian of the harness's share: {median(shares):.2f} s over {len(shares)} probes")
    return 0 if median(shares) < SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
