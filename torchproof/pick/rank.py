"""Driver, GPU and torch → the best image of a matrix, or why none fits. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from packaging.version import Version

from torchproof.errors import InputError
from torchproof.model.platforms import AMD64, ARM64
from torchproof.model.results import State
from torchproof.model.versions import cuda_number, cuda_version, minor_of
from torchproof.upstream.driver_rules import will_it_run
from torchproof.upstream.facts import Facts
from torchproof.upstream.gpus import GpuModel, best_code
from torchproof.upstream.host_fit import Driver, Fit, HostAnswer, HostRule, ImageNeeds

RANK = (State.VERIFIED, State.UNPROVEN, State.PLANNED)
"""Verdicts that a picked cell may have, best first; any other state means there is no image."""
NEVER = (State.UNAVAILABLE, State.EXCLUDED)
"""There is nothing to build, whatever the driver or GPU."""
_FITS = (Fit.YES, Fit.MINOR, Fit.FORWARD, Fit.UNKNOWN, Fit.NO)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCell:
    """One cell of the matrix. `ref` is its image where a report names one, else "" ."""

    needs: ImageNeeds
    torch: str
    python: str
    state: State
    reason: str = ""
    ref: str = ""
    digest: str = ""

    @property
    def cell(self) -> str:
        """The cell's id, which is its tag."""
        return self.needs.cell


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRequest:
    """What a user asks for. An empty torch or Python matches any; all GPUs must be served."""

    torch: str
    driver: Driver
    gpus: tuple[GpuModel, ...]
    python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """One candidate, and why it does or does not fit. `answer` is that for its worst GPU."""

    candidate: CandidateCell
    answer: HostAnswer | None
    against: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can be picked."""
        return not self.against


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """The best cell (None: nothing fits), all that were considered, and what would make one fit."""

    best: Considered | None
    considered: tuple[Considered, ...]
    change: tuple[str, ...] = ()


def check_torch(text: str) -> str:
    """Return a torch version as given (`2`, `2.9`, `2.9.1`), else raise InputError."""
    plain = text.strip().removeprefix("v")
    if not re.fullmatch(r"\d+(\.\d+){0,2}", plain):
        raise InputError(
            f"{text!r} is not a torch version", fix="write it like 2.9 or 2.9.1, without +cuXYZ"
        )
    return plain


def check_python(text: str) -> str:
    """Return a Python version as `3.11` ("" for any), else raise InputError."""
    match = re.fullmatch(r"(?:(?:py|cp)?3\.?(\d{1,2}))?", text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a Python version", fix="write it like 3.11")
    return f"3.{match[1]}" if match[1] else ""


def pick(candidates: Sequence[CandidateCell], request: PickRequest, facts: Facts) -> Picked:
    """Choose: verified first, then the better fit, the newer torch, the nearer CUDA."""
    considered = tuple(_consider(candidate, request, facts) for candidate in candidates)
    fitting = [item for item in considered if item.fits]
    if fitting:
        return Picked(best=_best(fitting), considered=considered)
    return Picked(
        best=None, considered=considered, change=tuple(_change(considered, request, facts))
    )


def _best(fitting: Sequence[Considered]) -> Considered:
    def proof(item: Considered) -> tuple[int, int]:
        fit = item.answer.fit if item.answer else Fit.UNKNOWN
        return RANK.index(item.candidate.state), _FITS.index(fit)

    def newness(item: Considered) -> tuple[Version, int, str]:
        number = cuda_number(item.candidate.needs.cuda)
        by_minor = item.answer is not None and item.answer.fit is Fit.MINOR
        return Version(item.candidate.torch), -number if by_minor else number, item.candidate.cell

    top = min(proof(item) for item in fitting)
    return max((item for item in fitting if proof(item) == top), key=newness)


def _consider(candidate: CandidateCell, request: PickRequest, facts: Facts) -> Considered:
    against = ""
    if not matches(candidate.torch, request.torch):
        against = f"it has torch {candidate.torch}"
    elif request.python and candidate.python != request.python:
        against = f"it has Python {candidate.python}"
    elif candidate.state in NEVER:
        against = f"{candidate.state}: {candidate.reason}"
    if against:
        return Considered(candidate=candidate, answer=None, against=against)
    answer = _answer(candidate.needs, request, facts)
    if not answer.runs:
        against = f"{answer.fit}: {answer.reason}"
    elif candidate.state not in RANK:
        against = (
            f"it would run there, but there is no image: {candidate.state}, {candidate.reason}"
        )
    return Considered(candidate=candidate, answer=answer, against=against)


def _answer(needs: ImageNeeds, request: PickRequest, facts: Facts) -> HostAnswer:
    """Return the answer for the GPU that the image fits worst."""
    answers = [will_it_run(needs, request.driver, gpu, facts) for gpu in request.gpus]
    return max(answers, key=lambda answer: _FITS.index(answer.fit))


def matches(version: str, asked: str) -> bool:
    """Tell whether `2.9` means `2.9.1`; an empty `asked` matches any version."""
    return not asked or (version + ".").startswith(asked + ".")


def _change(considered: Sequence[Considered], request: PickRequest, facts: Facts) -> Iterator[str]:
    """Yield what would make a cell fit, the least work first."""
    helps: dict[str, list[str]] = {}
    for item in considered:
        cell = item.candidate.cell
        if item.answer is None:
            if (
                item.candidate.state not in NEVER
                and _answer(item.candidate.needs, request, facts).runs
            ):
                helps.setdefault("another torch or Python that the matrix has", []).append(cell)
        elif item.answer.runs:
            helps.setdefault("build the image (`python build.py matrix --only CELL`)", []).append(
                cell
            )
        elif item.answer.rule is not HostRule.DEVICE_CODE:
            for change in item.answer.change:
                helps.setdefault(change, []).append(cell)
    for change, cells in helps.items():
        yield f"{change}: {', '.join(cells)}"
    platform = ARM64 if any(gpu.cpu == "arm64" for gpu in request.gpus) else AMD64
    have = {
        (item.candidate.torch, item.candidate.needs.cuda)
        for item in considered
        if item.candidate.needs.platform == platform
    }
    yield from _additions(have, platform, request, facts)


def _additions(
    have: Collection[tuple[str, str]], platform: str, request: PickRequest, facts: Facts
) -> Iterator[str]:
    """Yield builds that upstream publishes and the matrix lacks: of that torch, else the newest."""
    fitting = [
        build
        for build in _upstream(platform, facts)
        if build[:2] not in have and _answer(build[2], request, facts).runs
    ]
    asked = [build for build in fitting if matches(build[0], request.torch)]
    for torch, cuda, _ in asked or fitting[:1]:
        yield f"add to matrix.yaml, upstream publishes it: torch {torch} for {cuda} on {platform}"
    if fitting:
        return
    for torch, cuda, needs in _upstream(platform, facts):
        if all(best_code(needs.archs, gpu.arch, cuda=cuda_version(cuda)) for gpu in request.gpus):
            gpus = ", ".join(gpu.label for gpu in request.gpus)
            yield f"the newest torch with code for {gpus} is {torch} for {cuda}"
            return


def _upstream(platform: str, facts: Facts) -> list[tuple[str, str, ImageNeeds]]:
    """Return what upstream publishes: the newest patch of each torch by CUDA, newest first."""
    found = []
    for version in sorted(facts.releases, key=Version, reverse=True):
        if version != facts.newest_patch(minor_of(version)):
            continue
        for cuda, build in facts.releases[version].builds.items():
            archs = build.archs_on(platform)
            if platform in build.platforms and archs:
                needs = ImageNeeds(cell=version, cuda=cuda, platform=platform, archs=archs)
                found.append((version, cuda, needs))
    return found
