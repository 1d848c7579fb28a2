"""What a finished script means: exit code and output → a probe's result. Pure.

A skip, a crash, a hang and an answer that cannot be read are never a pass.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchproof._process import RunResult
from torchproof.model.results import Host, Outcome, ProbeResult
from torchproof.probing.diagnosis import by_code, diagnose
from torchproof.probing.script import Probe

HANGS = frozenset({"hang", "timeout", "collective_timeout"})
"""Codes by which a script says that it ended a hang itself."""
VAGUE = frozenset({"exception", "rank_failed", "rank_died", "garbage", "no_json", *HANGS})
"""Codes that say how a script ended and not why: the table of diagnoses is asked."""
LOG_END = 20_000
"""Characters of standard error that are searched: what led to the end is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a script said, or how it failed to say anything."""

    outcome: Outcome
    code: str
    message: str
    fix: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)


def interpret(
    probe: Probe,
    run: RunResult,
    *,
    required: bool,
    host: Host,
    ranks_per_gpu: int = 1,
    log: str = "",
) -> ProbeResult:
    """Turn a finished run into a result; `host` carries the GPUs that the run was given."""
    answer = _explained(_answer(probe, run), run)
    if probe.expect:
        answer = _expected(probe, answer)
    if answer.outcome is Outcome.PASS:
        answer = _as_proof(probe, answer, len(host.gpus), ranks_per_gpu)
    return ProbeResult(
        name=probe.name,
        outcome=answer.outcome,
        code=answer.code,
        seconds=round(run.seconds, 3),
        message=answer.message,
        fix=answer.fix,
        required=required,
        metrics=answer.metrics,
        host=host,
        log=log,
    )


def _answer(probe: Probe, run: RunResult) -> Answer:
    code = run.exit_code
    if code is None:
        where = _last_frame(run.stderr)
        return Answer(
            outcome=Outcome.TIMEOUT,
            code="timeout",
            message=f"no end within {probe.timeout:.0f} s{where}",
            fix="the stacks of the hang are in the log",
        )
    if code < 0 or 128 < code < 160:
        return _died(-code if code < 0 else code - 128)
    said = _json(run.stdout)
    if isinstance(said, str):
        text = run.stdout.strip()
        printed = f"standard output is not one JSON object: {text[:120]!r}"
        printed = printed if text else "nothing on standard output where one JSON object belongs"
        message = f"exit code {code}, and {printed}"
        return Answer(outcome=Outcome.FAIL, code=said, message=message, fix=_last_line(run.stderr))
    answer = Answer(
        outcome=Outcome.FAIL,
        code=said["code"],
        message=str(said.get("message") or ""),
        fix=str(said.get("fix") or ""),
        metrics=said.get("metrics") or {},
    )
    return _by_exit_code(answer, code)


def _by_exit_code(answer: Answer, code: int) -> Answer:
    match code:
        case 0 if answer.code == "ok":
            return replace(answer, outcome=Outcome.PASS)
        case 77 if answer.code != "ok":
            return replace(answer, outcome=Outcome.SKIP)
        case 1 if answer.code in HANGS:
            return replace(answer, outcome=Outcome.TIMEOUT)
        case 1 if answer.code != "ok":
            return answer
        case 0 | 1 | 77:
            message = f"the script says {answer.code!r} and ends with exit code {code}"
            return replace(answer, code="contradiction", message=message)
        case _:
            message = f"exit code {code}: {answer.message}"
            return replace(answer, code=f"exit_{code}", message=message)


def _died(number: int) -> Answer:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hints = {
        "SIGKILL": "killed from outside: out of memory (the container's or the host's limit)?",
        "SIGBUS": "a shared-memory file that does not fit /dev/shm ends so: use --shm-size",
        "SIGILL": "the image's CPU code needs instructions that this processor lacks",
    }
    return Answer(
        outcome=Outcome.FAIL,
        code=name.lower().replace(" ", "_"),
        message=f"the script was killed by {name}",
        fix=hints.get(name, "the stacks at the crash are in the log"),
    )


def _json(stdout: str) -> dict[str, Any] | str:
    """Return the one object that a script printed, or a code that says what is wrong with it.

    An entrypoint may greet on standard output, so there may be other lines around the answer.
    """
    objects = []
    for line in stdout.splitlines():
        if line.lstrip().startswith("{"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and "code" in value:
                objects.append(value)
    if len(objects) > 1:
        return "many_answers"
    if not objects:
        return "garbage" if stdout.strip() else "no_json"
    code, metrics = objects[0]["code"], objects[0].get("metrics") or {}
    if not isinstance(code, str) or not code or not isinstance(metrics, dict):
        return "garbage"
    return objects[0]


def _explained(answer: Answer, run: RunResult) -> Answer:
    """Let the table of diagnoses name the cause, and whether it is the host's."""
    if answer.outcome in (Outcome.PASS, Outcome.SKIP):
        return answer
    known = by_code(answer.code)
    if known is None and (answer.code in VAGUE or answer.code.startswith(("exit_", "sig"))):
        known = diagnose(f"{answer.message}\n{run.stderr[-LOG_END:]}")
        if known is not None:
            message = f"{known.message} ({answer.message})"
            answer = replace(answer, code=known.code, message=message, fix=known.fix)
    if known is None:
        return answer
    if known.code in HANGS:
        answer = replace(answer, outcome=Outcome.TIMEOUT)
    if known.host_fault:
        answer = replace(answer, outcome=Outcome.HOST_FAULT)
    return replace(answer, fix=answer.fix or known.fix)


def _expected(probe: Probe, answer: Answer) -> Answer:
    """A probe on trial: only the failure that it has to find is a pass."""
    if answer.outcome is Outcome.FAIL and answer.code == probe.expect:
        message = f"fails as it has to here: {answer.message}"
        return Answer(outcome=Outcome.PASS, code="ok", message=message, metrics=answer.metrics)
    if answer.outcome is Outcome.PASS:
        message = f"the probe passed where it has to fail with {probe.expect!r}"
        return replace(answer, outcome=Outcome.FAIL, code="blind", message=message)
    return answer


def _as_proof(probe: Probe, answer: Answer, gpus: int, ranks_per_gpu: int) -> Answer:
    """A pass with fewer GPUs than the probe needs, or with shared ones, proves its code only."""
    if probe.gpus > 1 and ranks_per_gpu > 1:
        code = "shared_gpu"
        seen = f"right with {ranks_per_gpu} ranks on each GPU, which proves the code, not the links"
    elif gpus < probe.gpus:
        code, seen = "too_few_gpus", f"right on {gpus} GPU; {probe.gpus} are needed to prove it"
    else:
        return answer
    message = f"{seen}: {answer.message}" if answer.message else seen
    return replace(answer, outcome=Outcome.SKIP, code=code, message=message)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"last words on standard error: {lines[-1][:300]}" if lines else ""


def _last_frame(stderr: str) -> str:
    """Where the main thread stood, from faulthandler's dump."""
    parts = stderr.rsplit("(most recent call first):", 1)
    frame = re.search(r'File "([^"]+)", line (\d+) in (\S+)', parts[1]) if len(parts) > 1 else None
    return f"; it stood in {frame[3]} ({frame[1]}:{frame[2]})" if frame else ""
