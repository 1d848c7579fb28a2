"""What evidence must cover, and whether it does. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torchproof.errors import InputError
from torchproof.model.results import Outcome, State
from torchproof.publish.attestation.statement import HostRead, PredicateModel, ProbeRead

_KINDS = ("probe", "verdict", "suite", "cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What one asks of evidence.

    `driver` is a version or its beginning (`550`, `550.90.07`), `gpu` a model or part of its name
    (`H100`); both must hold for one and the same host.
    """

    probes: tuple[str, ...] = ()
    verdict: str = ""
    suite: str = ""
    cell: str = ""
    driver: str = ""
    gpu: str = ""


def parse_requirement(texts: Sequence[str], *, driver: str = "", gpu: str = "") -> Requirement:
    """Read `--require KIND=VALUE` options. Raise `InputError` for what is none."""
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for text in texts:
        kind, equals, value = text.partition("=")
        if not equals or not value.strip():
            raise InputError(
                f"--require {text!r} is not KIND=VALUE", fix="for example --require probe=ddp_step"
            )
        if kind.strip() not in found:
            close = difflib.get_close_matches(kind, _KINDS, n=1)
            fix = f"did you mean {close[0]}?" if close else f"kinds are: {', '.join(_KINDS)}"
            raise InputError(f"--require knows no {kind!r}", fix=fix)
        found[kind.strip()].append(value.strip())
    for kind in ("verdict", "suite", "cell"):
        if len(set(found[kind])) > 1:
            raise InputError(f"--require {kind}= is given twice", fix="an image has only one")
    return Requirement(
        probes=tuple(found["probe"]),
        verdict=next(iter(found["verdict"]), ""),
        suite=next(iter(found["suite"]), ""),
        cell=next(iter(found["cell"]), ""),
        driver=driver,
        gpu=gpu,
    )


def uncovered(requirement: Requirement, evidence: Iterable[PredicateModel]) -> tuple[str, ...]:
    """Say what the evidence of an image does not cover; empty if it covers all.

    Evidence whose verdict is `failed` covers nothing. Without `probe=`, a driver or GPU asks for
    one host where every required probe passed.
    """
    able = [
        one
        for one in evidence
        if one.cell.verdict is not State.FAILED
        and (not requirement.suite or one.suite_hash.endswith(requirement.suite))
        and (not requirement.cell or fnmatchcase(one.cell.id, requirement.cell))
    ]
    if not able:
        asked = " ".join(part for part in (requirement.suite, requirement.cell) if part)
        return (f"no evidence without a failure{' for ' + asked if asked else ''}",)
    missing = []
    if requirement.verdict and all(one.cell.verdict != requirement.verdict for one in able):
        said = ", ".join(sorted({str(one.cell.verdict) for one in able}))
        missing.append(f"the verdict is {said}, not {requirement.verdict}")
    probes = [probe for one in able for probe in one.cell.probes]
    where = _where(requirement)
    missing += [
        f"probe {name} has not passed{where}{_instead(name, probes)}"
        for name in requirement.probes
        if not any(fnmatchcase(one.name, name) and _passed(one, requirement) for one in probes)
    ]
    if not requirement.probes and where:
        missing += _uncovered_host(requirement, able, where)
    return tuple(missing)


def passes(host: HostRead, requirement: Requirement) -> bool:
    """Tell whether a host is one that is asked about."""
    driver, gpu = requirement.driver, requirement.gpu.casefold()
    if driver and not f"{host.driver or ''}.".startswith(f"{driver}."):
        return False
    return not gpu or any(gpu in one.model.casefold() for one in host.gpus)


def _passed(probe: ProbeRead, requirement: Requirement) -> bool:
    return probe.outcome is Outcome.PASS and passes(probe.host, requirement)


def _uncovered_host(
    requirement: Requirement, able: Sequence[PredicateModel], where: str
) -> list[str]:
    asked = {one.name for each in able for one in each.cell.probes if one.required}
    passed = {one.name for each in able for one in each.cell.probes if _passed(one, requirement)}
    lacking = sorted(asked - passed)
    if not asked or not passed:
        return [f"nothing was proven{where}"]
    return [f"these have not passed{where}: {', '.join(lacking)}"] if lacking else []


def _where(requirement: Requirement) -> str:
    parts = [
        f"driver {requirement.driver}" if requirement.driver else "",
        f"GPU {requirement.gpu}" if requirement.gpu else "",
    ]
    text = " and ".join(part for part in parts if part)
    return f" with {text}" if text else ""


def _instead(name: str, probes: Sequence[ProbeRead]) -> str:
    """Say what is known of a probe, or which name was meant."""
    same = [one for one in probes if fnmatchcase(one.name, name)]
    if same:
        told = sorted({f"{one.outcome} on {describe_host(one.host)}" for one in same})
        return f" ({'; '.join(told)})"
    close = difflib.get_close_matches(name, {one.name for one in probes}, n=1)
    return f" (did you mean {close[0]}?)" if close else " (the evidence has no such probe)"


def describe_host(host: HostRead) -> str:
    """Return a host in a few words: `docker 20.10, driver 550.90.07, 2 x NVIDIA H100`."""
    models: dict[str, int] = {}
    for gpu in host.gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    parts = [host.engine, f"driver {host.driver}" if host.driver else "no driver"]
    parts += [f"{count} x {model}" for model, count in models.items()] or ["no GPU"]
    return ", ".join(parts)
