"""The steps of the CI pipelines on this machine: one shard a cell, each in a folder of its own.

`make ci-local` runs this. Each shard has a copy of the repository, so that only its report reaches
the merge. `--compare FOLDER` then says whether the merged report is that of one whole run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMES = frozenset({"generated_at", "at", "seconds", "reused", "metrics", "log", "path"})
"""Fields that two runs of the same may differ in: when, how long, what was measured, where."""


def main(arguments: list[str]) -> int:
    """Run the shards and merge them; the exit code is the merge's, or 1 if reports differ."""
    parser = argparse.ArgumentParser(prog="ci/local.py", description=__doc__)
    parser.add_argument("--only", help="only these cells")
    parser.add_argument("--shards", type=Path, default=Path("build/ci"), help="their folder")
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="the merged report")
    parser.add_argument("--compare", type=Path, help="report of one whole run")
    parser.add_argument("matrix", nargs="*", help="options for `matrix`, after --")
    asked = parser.parse_args(arguments)
    only = ["--only", asked.only] if asked.only else []
    plan = _call("plan", "--json", *only, capture=True)
    if plan.returncode:
        return plan.returncode
    cells = [cell["id"] for cell in json.loads(plan.stdout)["cells"]]
    shutil.rmtree(asked.shards, ignore_errors=True)
    sources: list[str] = []
    for number, cell in enumerate(cells, 1):
        print(f"== shard {number} of {len(cells)}: {cell}", flush=True)  # noqa: T201
        shard = (asked.shards / cell).resolve()
        _copy(shard)
        done = _call("matrix", "--only", cell, *asked.matrix, cwd=shard)
        if not (shard / "reports/report.json").is_file():
            return done.returncode or 1
        sources += ["--from", str(shard / "reports")]
    print("== merge", flush=True)  # noqa: T201
    merged = _call("report", *sources, "--reports", str(asked.reports))
    if asked.compare is None:
        return merged.returncode
    return 1 if _differ(asked.compare, asked.reports) else merged.returncode


def differences(one: Any, other: Any, where: str = "report") -> Iterator[str]:
    """Say where two reports differ, but for times."""
    if isinstance(one, dict) and isinstance(other, dict):
        # What a probe says holds times, ranks and names of containers; its outcome and code do not.
        skipped = TIMES | {"message"} if "code" in one else TIMES
        for name in sorted((one.keys() | other.keys()) - skipped):
            yield from differences(one.get(name), other.get(name), f"{where}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{where}[{number}]")
    elif one != other:
        yield f"{where}: {one!r} in the whole run, {other!r} in the shards"


def _differ(whole: Path, merged: Path) -> bool:
    one, other = (json.loads((one / "report.json").read_text()) for one in (whole, merged))
    found = list(differences(one, other))
    print("\n".join(found) or "the shards give the report of the whole run")  # noqa: T201
    return bool(found)


def _copy(shard: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if Path(name).is_file():
            (shard / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, shard / name)


def _call(
    *arguments: str, cwd: Path | None = None, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "build.py"), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
