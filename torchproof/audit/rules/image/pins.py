"""Family `pins`: what is installed, against lock, cell, torch's requirements and platform."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from torchproof.audit.facts import ImageFacts
from torchproof.audit.rule import Rule, rules_of
from torchproof.audit.rules.image.requirements import requirements, version_of
from torchproof.model.lock import PYPI
from torchproof.model.results import Finding
from torchproof.upstream.facts import load_facts

NOT_LOCKED: Final = frozenset({"pip", "setuptools", "wheel", "uv"})
COMPANIONS: Final = ("torchvision", "torchaudio")
MANYLINUX: Final = re.compile(r"manylinux_(\d+)_(\d+)_")
GLIBC: Final = re.compile(r"GLIBC_(\d+)\.(\d+)$")
CUDA_ENV: Final = ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION")


def against_lock(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find wheels of the lock that are not installed as locked, and what is installed besides."""
    if facts.lock is None or not facts.distributions:
        return
    installed = {dist.name: dist for dist in reversed(facts.distributions)}
    for wheel in facts.lock.wheels:
        found = installed.pop(wheel.name, None)
        if found is None:
            yield rule.error(f"{wheel.name} {wheel.version} of the lock is not installed")
        elif version_of(found.version) != version_of(wheel.version):
            yield rule.error(
                f"{wheel.name} {found.version} is installed, the lock says {wheel.version}",
                where=found.info,
            )
    for name in sorted(set(installed) - NOT_LOCKED):
        extra = installed[name]
        if "/dist-packages" not in extra.site:
            yield rule.note(f"{name} {extra.version} is not in the lock", where=extra.info)


def torch_build(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a torch of another CUDA than the cell, or the base, is for."""
    torch, asked = facts.torch, _asked_cuda(facts)
    if torch is None or torch.cuda is None:
        return
    where = f"{torch.site}/torch/version.py"
    what = "a CPU build" if torch.cuda == "cpu" else f"a build for {torch.cuda}"
    if asked and asked != torch.cuda and not asked.startswith(torch.cuda):
        yield rule.error(
            f"torch {torch.torch_version} is {what}; the cell asks for {asked}", where=where
        )
        return
    base = next((facts.env[name] for name in CUDA_ENV if facts.env.get(name)), "")
    major = base.split(".")[0]
    if not major or asked:
        return
    if torch.cuda == "cpu":
        yield rule.error(
            f"torch {torch.torch_version} is a CPU build on a base with CUDA {base}", where=where
        )
    elif torch.cuda[2:4] != major and torch.cuda.startswith("cu"):
        yield rule.error(
            f"torch {torch.torch_version} is built for {torch.cuda}, the base has CUDA {base}: "
            "extensions compiled there do not fit it",
            where=where,
        )


def locked_build(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a lock whose torch wheel is a build for another CUDA than its cell says."""
    lock = facts.lock
    if lock is None:
        return
    wheel = next((wheel for wheel in lock.wheels if wheel.name == "torch"), None)
    if wheel is None:
        yield rule.error(f"the lock of {lock.cell} has no torch")
        return
    local = wheel.version.partition("+")[2] or _local_of(wheel.filename)
    release = load_facts().release(lock.torch)
    published = release.default.get(lock.platform, "") if release and wheel.index == PYPI else ""
    built = local or published
    if built and built != lock.cuda:
        what = "a CPU build" if built == "cpu" else f"a build for {built}"
        yield rule.error(
            f"cell {lock.cell} ({lock.platform}, {lock.cuda}) resolved torch {wheel.version} from "
            f"the index {wheel.index}, which is {what}",
            where=wheel.filename,
            fix=f"take torch from the index pytorch/{lock.cuda}",
        )
    for other in lock.wheels:
        if other.name in COMPANIONS and other.index != wheel.index:
            yield rule.error(
                f"{other.name} {other.version} comes from {other.index}, torch from {wheel.index}: "
                "builds of two indexes do not fit",
                where=other.filename,
                fix="take torch, torchvision and torchaudio from one index",
            )
    for other in lock.wheels:
        if other.name.startswith("nvidia-") and other.index not in (wheel.index, PYPI):
            yield rule.warning(
                f"{other.filename} is locked from {other.index}, torch from {wheel.index}: files "
                "of one name differ between indexes",
                where=other.filename,
            )


def companions(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find torchvision or torchaudio of another build than torch."""
    torch = facts.torch
    if torch is None or torch.cuda is None:
        return
    for name in COMPANIONS:
        for dist in facts.installed(name):
            if dist.site == torch.site and dist.cuda and not _same_cuda(dist.cuda, torch.cuda):
                yield rule.error(
                    f"{name} {dist.version} is built for {dist.cuda}, torch {torch.torch_version} "
                    f'for {torch.cuda}: "operator {name}::… does not exist"',
                    where=dist.info,
                )


def numpy_two(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find numpy 2 beside a torch that was compiled for numpy 1."""
    for torch in facts.installed("torch"):
        for numpy in facts.installed("numpy"):
            old = version_of(torch.version) < Version("2.3")
            if numpy.site == torch.site and old and version_of(numpy.version).major >= 2:
                yield rule.error(
                    f"numpy {numpy.version} with torch {torch.version}, which was compiled for "
                    'numpy 1: "A module that was compiled using NumPy 1.x cannot be run"',
                    where=numpy.info,
                )


def platform_tags(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find wheels for a newer glibc, or another machine or Python, than the image has."""
    libc = next(
        (elf for path, elf in facts.elves.items() if posixpath.basename(path) == "libc.so.6"), None
    )
    if libc is None and (found := facts.read("/lib64/libc.so.6").elf):
        libc = found
    has = max((_glibc(name) for name in libc.version_defs), default=None) if libc else None
    for dist in facts.distributions:
        wants = [
            (int(match[1]), int(match[2])) for tag in dist.tags if (match := MANYLINUX.search(tag))
        ]
        if has and wants and min(wants) > has:
            needs = ".".join(map(str, min(wants)))
            yield rule.error(
                f"{dist.name} {dist.version} needs glibc {needs} or newer ({dist.tags[0]}); the "
                f"image has glibc {'.'.join(map(str, has))}",
                where=dist.info,
                fix=f"use a base with glibc {needs} or newer",
            )
        machine = facts.config.machine if facts.config else None
        if machine and dist.tags and not any(_fits(tag, machine) for tag in dist.tags):
            yield rule.error(
                f"{dist.name} {dist.version} is a wheel for {dist.tags[0]}, the image is "
                f"{facts.config.platform if facts.config else ''}",
                where=dist.info,
            )


def unstable(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a torch that is not a release: nightlies are deleted from their index."""
    torch = facts.torch
    if torch is not None and version_of(torch.version).is_devrelease:
        yield rule.warning(
            f"torch {torch.version} is a nightly: it is deleted from its index after some weeks",
            where=torch.info,
        )


def constraints(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find pip constraints that the base sets for every later install."""
    named = facts.env.get("PIP_CONSTRAINT", "")
    path = named or "/etc/pip/constraint.txt"
    if named or facts.lookup(path):
        yield rule.note(
            f"pip installs under the constraints of {path}; uv does not read them", where=path
        )


def _asked_cuda(facts: ImageFacts) -> str:
    if facts.lock is not None:
        return facts.lock.cuda
    if facts.cell is not None:
        return facts.cell.cuda
    label = facts.config.labels.get("torchproof.cuda", "") if facts.config else ""
    return f"cu{label.replace('.', '')}" if label else ""


def _local_of(filename: str) -> str:
    match = re.search(r"(?:\+|%2B)(cu\d+|cpu|rocm[\d.]+)", filename)
    return match[1] if match else ""


def _same_cuda(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _glibc(name: str) -> tuple[int, int]:
    match = GLIBC.match(name)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _fits(tag: str, machine: str) -> bool:
    platform = tag.rpartition("-")[2]
    return platform == "any" or platform.endswith(machine)


RULES: Final = rules_of(
    "pins",
    (
        "lock",
        against_lock,
        "The image holds other versions than its lock, so evidence about one says nothing.",
        "build the image again from its lock",
        "PEP 376; images/<cell>/lock.yaml",
    ),
    (
        "build",
        torch_build,
        "torch of the wrong CUDA, or of none: `torch.cuda.is_available()` is False, or extensions "
        "fail.",
        "install torch from the index of the requested CUDA, as the last step",
        "pytorch/pytorch#160162, LMCache/LMCache#3400",
    ),
    (
        "locked",
        locked_build,
        "A lock that resolved to the CPU wheel, or to another CUDA than the cell's.",
        "lock torch and all nvidia wheels from one index: that of the cell's CUDA",
        "LMCache/LMCache#3400, pytorch/pytorch#160162, astral-sh/uv#16784",
    ),
    (
        "companions",
        companions,
        '"operator torchvision::nms does not exist" at import.',
        "take torch, torchvision and torchaudio from one index, with one local version",
        "pytorch/vision releases; compatibility table of torchvision's README",
    ),
    (
        "requirements",
        requirements,
        "The next `pip install` of anything replaces torch.",
        "install what is missing, or versions that fit one another; `pip check` must be clean",
        "pypa/pip#12902, ROCm/pytorch#1532",
    ),
    (
        "numpy",
        numpy_two,
        "torch before 2.3 crashes or warns with numpy 2.",
        'install "numpy<2", or torch 2.3 or newer',
        "numpy 2.0 release notes, migration guide",
    ),
    (
        "platform",
        platform_tags,
        "Wheels that cannot run on this base: `GLIBC_2.28 not found`.",
        "use a base that the wheel's tags allow",
        "PEP 600; pytorch/pytorch#123649",
    ),
    (
        "nightly",
        unstable,
        "A build from a nightly cannot be repeated.",
        "take a release",
        "pytorch/pytorch#125862",
    ),
    (
        "constraint",
        constraints,
        "A constraints file of the base blocks, or silently changes, later installs.",
        "read the file, and edit it knowingly",
        "crickett-hpe/hpc-ai-envs#29",
    ),
)
