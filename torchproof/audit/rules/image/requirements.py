"""Unmet requirements of installed distributions, as `pip check` finds them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchproof.audit.facts import ImageFacts, Subject
from torchproof.audit.model.distributions import Distribution
from torchproof.audit.model.process import SITE, interpreter
from torchproof.audit.rule import Rule
from torchproof.model.results import Finding

"""Platforms of images → what the kernel calls the machine."""


def requirements(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find unmet requirements of installed distributions, as `pip check` would."""
    overridden = _overridden(facts)
    installed = {(dist.site, dist.name): dist for dist in facts.distributions}
    for dist in facts.distributions:
        environment = _environment(facts, dist)
        for line in dist.requires:
            wanted = _applies(line, environment)
            if wanted is None:
                continue
            name = canonicalize_name(wanted.name)
            found = installed.get((dist.site, name)) or next(iter(facts.installed(name)), None)
            if found is not None and _satisfies(wanted, found):
                continue
            if found is not None and overridden.get(name) == found.version:
                yield rule.note(
                    f"{dist.name} pins {_short(wanted)}; the cell overrides it by {found.version}",
                    where=dist.info,
                )
                continue
            yield _unmet(rule, dist, wanted, found)


def _unmet(
    rule: Rule, dist: Distribution, wanted: Requirement, found: Distribution | None
) -> Finding:
    has = f"{found.version} is installed" if found else "it is not installed"
    before = ""
    if found and version_of(found.version).is_prerelease:
        before = f" ({found.version} is a pre-release, which is older by PEP 440)"
    vital = dist.name == "torch" or (found is not None and found.name == "torch")
    replaced = f"the next `pip install` will replace {'torch' if vital else dist.name}"
    report = rule.error if vital else rule.warning
    return report(
        f"{dist.name} {dist.version} requires {_short(wanted)}; {has}{before}: {replaced}",
        where=dist.info,
    )


def _overridden(facts: ImageFacts) -> dict[str, str]:
    """Return what a cell replaces on purpose: name → version."""
    if facts.lock is not None:
        return {item.name: item.chosen for item in facts.lock.overrides}
    labels = facts.config.labels if facts.config else {}
    stated = {key: labels.get(f"torchproof.{key}", "") for key in ("nccl", "cudnn")}
    return {
        dist.name: dist.version
        for dist in facts.distributions
        for key, version in stated.items()
        if re.match(rf"nvidia-{key}-cu\d+$", dist.name) and dist.version == version
    }


def _environment(facts: ImageFacts, dist: Distribution) -> dict[str, str]:
    match = SITE.match(dist.site)
    python = match["python"].removeprefix("python").rstrip("t") if match else ""
    if match and "." not in python and facts.subject is not Subject.WHEELS:
        program = interpreter(facts, dist.site) or ""
        found = re.search(r"python(3\.\d+)", program)
        python = found[1] if found else ""
    machine = facts.config.machine if facts.config else None
    environment = {str(key): str(value) for key, value in default_environment().items()}
    environment |= {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine or "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    if "." in python:
        environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    return environment


def _short(wanted: Requirement) -> str:
    return f"{wanted.name}{wanted.specifier}"


def _applies(line: str, environment: dict[str, str]) -> Requirement | None:
    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return None
    marked = wanted.marker is None or wanted.marker.evaluate(environment | {"extra": ""})
    return wanted if marked else None


def _satisfies(wanted: Requirement, found: Distribution) -> bool:
    return wanted.specifier.contains(version_of(found.version), prereleases=True)


def version_of(text: str) -> Version:
    """Parse a version; an invalid one counts as 0."""
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")
