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
    """What the evidence of an image must show.

    `driver` is a version or its beginning (`550`, `550.90.07`), `gpu` a model or part of its name
    (`H100`); both must hold for the same host.
    """

    probes: tuple[str, ...] = ()
    verdict: str = ""
    suite: str = ""
    cell: str = ""
    driver: str = ""
    gpu: str = ""


def parse_requirement(texts: Sequence[str], *, driver: str = "", gpu: str = "") -> Requirement:
    """Read `--require KIND=VALUE` options. Raise `InputError` for an invalid one."""
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for text in texts:
        kind, equals, value = text.partition("=")
        if not equals or not value.strip():
            raise InputError(
                f"--require {text!r} is not KIND=VALUE", fix="for example --require probe=ddp_step"
            )
        if kind.strip() not in found:
            close = difflib.get_close_matches(kind, _KINDS, n=1)
            fix = f"did you mean {close[0]}?" if close else f"use one of {', '.join(_KINDS)}"
            raise InputError(f"--require has no kind {kind!r}", fix=fix)
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
    """List what the evidence of an image does not cover; empty if it covers everything.

    Evidence whose verdict is `failed` covers nothing. Without `probe=`, a driver or GPU asks for
    one host where every required probe passed.
    """
    usable = [
        predicate
        for predicate in evidence
        if predicate.cell.verdict is not State.FAILED
        and (not requirement.suite or predicate.suite_hash.endswith(requirement.suite))
        and (not requirement.cell or fnmatchcase(predicate.cell.id, requirement.cell))
    ]
    if not usable:
        asked = " ".join(part for part in (requirement.suite, requirement.cell) if part)
        return (f"no evidence without a failure{' for ' + asked if asked else ''}",)
    missing = []
    verdicts = {str(predicate.cell.verdict) for predicate in usable}
    if requirement.verdict and requirement.verdict not in verdicts:
        missing.append(f"the verdict is {', '.join(sorted(verdicts))}, not {requirement.verdict}")
    probes = [probe for predicate in usable for probe in predicate.cell.probes]
    where = _where(requirement)
    missing += [
        f"probe {name} has not passed{where}{_known_of(name, probes)}"
        for name in requirement.probes
        if not any(
            fnmatchcase(probe.name, name) and _passed(probe, requirement) for probe in probes
        )
    ]
    if not requirement.probes and where:
        missing += _uncovered_host(requirement, usable, where)
    return tuple(missing)


def host_matches(host: HostRead, requirement: Requirement) -> bool:
    """Tell whether a host has the driver and GPU that are asked for."""
    driver, gpu = requirement.driver, requirement.gpu.casefold()
    if driver and not f"{host.driver or ''}.".startswith(f"{driver}."):
        return False
    return not gpu or any(gpu in item.model.casefold() for item in host.gpus)


def _passed(probe: ProbeRead, requirement: Requirement) -> bool:
    return probe.outcome is Outcome.PASS and host_matches(probe.host, requirement)


def _uncovered_host(
    requirement: Requirement, usable: Sequence[PredicateModel], where: str
) -> list[str]:
    probes = [probe for predicate in usable for probe in predicate.cell.probes]
    required = {probe.name for probe in probes if probe.required}
    passed = {probe.name for probe in probes if _passed(probe, requirement)}
    lacking = sorted(required - passed)
    if not required or not passed:
        return [f"nothing was proven{where}"]
    return [f"these have not passed{where}: {', '.join(lacking)}"] if lacking else []


def _where(requirement: Requirement) -> str:
    parts = [
        f"driver {requirement.driver}" if requirement.driver else "",
        f"GPU {requirement.gpu}" if requirement.gpu else "",
    ]
    text = " and ".join(part for part in parts if part)
    return f" with {text}" if text else ""


def _known_of(name: str, probes: Sequence[ProbeRead]) -> str:
    """Say how a probe ended, or which name was probably meant."""
    same = [probe for probe in probes if fnmatchcase(probe.name, name)]
    if same:
        outcomes = sorted({f"{probe.outcome} on {host_text(probe.host)}" for probe in same})
        return f" ({'; '.join(outcomes)})"
    close = difflib.get_close_matches(name, {probe.name for probe in probes}, n=1)
    return f" (did you mean {close[0]}?)" if close else " (the evidence has no such probe)"


def host_text(host: HostRead) -> str:
    """Return a host in words: `docker 20.10, driver 550.90.07, 2 x NVIDIA H100`."""
    models: dict[str, int] = {}
    for gpu in host.gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    parts = [host.engine, f"driver {host.driver}" if host.driver else "no driver"]
    parts += [f"{count} x {model}" for model, count in models.items()] or ["no GPU"]
    return ", ".join(parts)
