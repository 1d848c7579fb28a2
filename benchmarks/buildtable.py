"""The result of bench_build as a page: both builders beside each other, and the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

START, END = "<!-- bench-build -->", "<!-- /bench-build -->"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def table(result: dict[str, Any]) -> str:
    assembled = {row["step"]: row for row in result["rows"] if row["builder"] == "assemble"}
    built = {row["step"]: row for row in result["rows"] if row["builder"] == "docker"}
    load = ", ".join(f"{one:.1f}" for one in result["load"])
    middle = ", docker's one run in their middle" if built and assembled else ""
    lines = [
        f"{result['cores']} cores, load {load} before; assemble: the median of "
        f"{len(result.get('runs', ()))} runs (fastest–slowest)"
        f"{middle}. Each number of cells starts from an empty registry.",
        "",
        "| | builder | seconds | times | CPU seconds | times | sent MB | stored MB | memory MB "
        "| disk MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for step in dict.fromkeys((*built, *assembled)):
        other = built.get(step) or (built.get("1 cell") if "known" in step else None)
        if step in built:
            lines.append(line(step, built[step], None, ""))
        if step in assembled:
            lines.append(line(step, assembled[step], other, spread(result, step)))
    if "floor" in result:
        floor, nowhere = result["floor"], result["nowhere"]
        lines += [
            "",
            f"Floor (inflate and hash the first cell's wheels): {floor['seconds']:.1f} s, "
            f"{floor['cpu']:.1f} CPU seconds; assembling it to nowhere: "
            f"{nowhere['seconds']:.1f} s, {nowhere['cpu']:.1f} CPU seconds: "
            f"{nowhere['seconds'] / floor['seconds']:.2f} times the floor, "
            f"{nowhere['cpu'] / floor['cpu']:.2f} in CPU.",
        ]
    return "\n".join(lines)


def spread(result: dict[str, Any], step: str) -> str:
    times = [row["seconds"] for run in result.get("runs", ()) for row in run if row["step"] == step]
    return f" ({min(times):.1f}–{max(times):.1f})" if len(times) > 1 else ""


def line(step: str, row: dict[str, Any], other: dict[str, Any] | None, said: str) -> str:
    times = cpu_times = ""
    if other:
        times = f"{other['seconds'] / row['seconds']:.1f}×"
        cpu_times = f"{other['cpu'] / row['cpu']:.1f}×"
    build = f" (build {row['build_seconds']:.1f})" if row["build_seconds"] else said
    sizes = " | ".join(f"{row[key] / 1e6:,.1f}" for key in ("uploaded", "stored"))
    own = " | ".join(f"{row[key] / 1e6:,.0f}" for key in ("peak_memory", "disk"))
    return (
        f"| {step} | {row['builder']} | {row['seconds']:.1f}{build} | {times} | "
        f"{row['cpu']:.1f} | {cpu_times} | {sizes} | {own} |"
    )


def write_docs(text: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n{text}\n{END}{after}")
