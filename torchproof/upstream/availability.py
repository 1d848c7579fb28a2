"""Does a combination exist, and where? Answers from the data, from a live index, or from a
wheelhouse; each answer carries its reason, its source and the nearest cell that exists. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from torchproof.model.cell import Cell
from torchproof.model.lock import PYPI, WHEELHOUSE
from torchproof.model.results import NotTried, State
from torchproof.model.versions import cuda_version, minor_of
from torchproof.upstream.facts import Build, Facts, Release
from torchproof.upstream.nearest import nearest_cells, nearest_serving, serves

Offer = tuple[str, str, str, str]
"""torch (public version), CUDA, Python, platform: `("2.9.1", "cu128", "3.11", "linux/amd64")`."""

_EXPECTED = "the release matrix has it, no listing was seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOffers:
    """What the indexes say now. An alias in neither mapping was not asked."""

    offers: Mapping[str, frozenset[Offer]] = field(default_factory=dict)
    """Alias → wheels of torch there. For `pypi`, only the versions that were asked about."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Alias → why it gave no answer."""

    def versions(self) -> frozenset[str]:
        """Return every version of torch that some index offers."""
        return frozenset(offer[0] for offers in self.offers.values() for offer in offers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Where a cell's torch comes from, or why it comes from nowhere.

    `index` is an alias; `verdict` is None if the cell can be tried; `note` names a difference
    between the data and an index, or where an unusual wheel comes from.
    """

    index: str
    verdict: NotTried | None = None
    note: str = ""


def home_of(cell: Cell, facts: Facts) -> str:
    """Return the alias of the index that upstream publishes a cell's torch on."""
    release = facts.release(cell.torch)
    plain = release is not None and release.default.get(cell.platform) == cell.cuda
    return PYPI if plain else f"pytorch/{cell.cuda}"


def judge(
    cell: Cell, facts: Facts, live: IndexOffers | None = None, *, wheelhouse: bool = False
) -> Availability:
    """Say whether a cell can be tried. `wheelhouse`: the user's folder has its torch.

    A live index that answers overrules the data.
    """
    found = _torch(cell, facts, live or IndexOffers(), wheelhouse=wheelhouse)
    blocked = found.verdict is not None and found.verdict.state == State.BLOCKED
    if (blocked or found.verdict is None) and not wheelhouse:
        found = replace(found, verdict=_lacking(cell, facts) or found.verdict)
    carried = facts.distributions.get(cell.base.bootstrap or "")
    if found.verdict is None and carried and carried.python != cell.python:
        return replace(
            found,
            verdict=NotTried(
                state=State.UNAVAILABLE,
                reason=f"{cell.base.bootstrap} has Python {carried.python}, not {cell.python}",
                source=f"package list of {cell.base.bootstrap}",
                nearest=nearest_cells(replace(cell, python=carried.python), facts, itself=True),
                fix=f"use Python {carried.python}, or a base `image` with Python {cell.python}",
            ),
        )
    return found


def _lacking(cell: Cell, facts: Facts) -> NotTried | None:
    """Refuse a slim cell for GPUs that its torch has no device code for."""
    build = _build(cell, facts)
    archs = build.archs_on(cell.platform) if build else ()
    lost = [gpu for gpu in cell.gpus if archs and not serves(archs, gpu, cell.cuda_version)]
    if build is None or not lost:
        return None
    return NotTried(
        state=State.UNAVAILABLE,
        reason=f"torch {cell.torch} for CUDA {cell.cuda_version} has no device code for "
        f"{_and(lost)}; it has {_and(archs)}",
        source=facts.cite(build.pins_from),
        nearest=nearest_serving(cell, facts),
        fix="take one of the nearest cells, or leave these out of `gpus`",
    )


def _build(cell: Cell, facts: Facts) -> Build | None:
    release = facts.release(cell.torch)
    return release.builds.get(cell.cuda) if release else None


def _torch(cell: Cell, facts: Facts, live: IndexOffers, *, wheelhouse: bool) -> Availability:
    offer: Offer = (cell.torch, cell.cuda, cell.python, cell.platform)
    known = facts.published(*offer)
    if wheelhouse:
        note = "" if known else "the wheelhouse gives what upstream never published"
        return Availability(index=WHEELHOUSE, note=note)
    home, own = home_of(cell, facts), f"pytorch/{cell.cuda}"
    for alias in dict.fromkeys((home, PYPI, own)):
        if offer in live.offers.get(alias, ()):
            note = "" if known else f"the index `{alias}` has it, though the data does not list it"
            return Availability(index=alias, note=note)
    verdict = _not_offered(cell, facts, live, (home, own))
    note = _remark(cell, facts) if verdict is None else ""
    return Availability(index=home, verdict=verdict, note=note)


def _not_offered(
    cell: Cell, facts: Facts, live: IndexOffers, aliases: tuple[str, str]
) -> NotTried | None:
    """Judge a cell that no index was seen to offer; None if none was asked and the data has it."""
    asked = [alias for alias in dict.fromkeys(aliases) if alias in live.offers]
    silent = [alias for alias in dict.fromkeys(aliases) if alias in live.problems]
    known = facts.published(cell.torch, cell.cuda, cell.python, cell.platform)
    if silent and (known or not _absence(cell, facts)):
        build = _build(cell, facts)
        seen = "upstream publishes it" if build and build.confirmed else _EXPECTED
        said = f"{seen}, but" if known else "no source says whether it exists, and"
        return NotTried(
            state=State.BLOCKED,
            reason=f"{said} {'; '.join(live.problems[alias] for alias in silent)}",
            source=f"index `{silent[-1]}`",
            fix="run where the index answers, or name a mirror as `indexes:` in matrix.yaml",
        )
    if not known:
        also = aliases[1] in live.offers
        return _never(cell, facts, f" (the index `{aliases[1]}` agrees)" if also else "")
    if not asked:
        return None
    have = "has" if len(asked) == 1 else "have"
    return NotTried(
        state=State.UNAVAILABLE,
        reason=f"{_and(f'the index `{alias}`' for alias in asked)} {have} no torch {cell.torch} "
        f"for {_target(cell)}, though the data says it was published; the index overrules it",
        source=f"index `{asked[-1]}`",
        nearest=nearest_cells(cell, facts),
        fix="take one of the nearest cells, or check `indexes:` in matrix.yaml",
    )


def _remark(cell: Cell, facts: Facts) -> str:
    build = _build(cell, facts)
    if build is None or build.official:
        return "" if build is None or build.confirmed else _EXPECTED
    return f"published outside the release matrix: {facts.cite(build.sources)}"


def _never(cell: Cell, facts: Facts, said: str) -> NotTried:
    release = facts.release(cell.torch)
    build = release.builds.get(cell.cuda) if release else None
    if release is None or build is None:
        return _no_cuda(cell, facts, said)
    if cell.platform not in build.platforms:
        what = f"on {cell.platform}; it exists on {_and(build.platforms)}"
    else:
        pythons = release.python_on(cell.platform)
        what = f"for Python {cell.python}; it exists for {_and(pythons)}"
    return NotTried(
        state=State.UNAVAILABLE,
        reason=f"torch {cell.torch} for CUDA {cell.cuda_version} has no wheel {what}{said}",
        source=facts.cite(build.sources),
        nearest=nearest_cells(cell, facts),
        fix="take one of the nearest cells, or provide your own wheel through `wheelhouse:`",
    )


def _no_cuda(cell: Cell, facts: Facts, said: str) -> NotTried:
    minor = minor_of(cell.torch)
    release = facts.release(cell.torch)
    has = _builds(release) if release else "no known CUDA build"
    reason = (
        f"torch {cell.torch} was never published for CUDA {cell.cuda_version}: it has {has}{said}"
    )
    sources = _absence(cell, facts)
    if not sources:
        reason = f"no source shows a torch {cell.torch} for CUDA {cell.cuda_version}; it has {has}"
        sources = tuple(
            key for build in (release.builds.values() if release else ()) for key in build.sources
        )
        reason += said
    cited = facts.cite(sources)
    fix = "take one of the nearest cells, or provide a wheel that you built through `wheelhouse:`"
    for gate in facts.source_build:
        if gate.covers(cell.torch) and Version(cell.cuda_version) < Version(gate.minimum):
            reason += (
                f"; nor can it be built from source: CMake of {minor} refuses CUDA below "
                f'{gate.minimum} ("{gate.message}")'
            )
            cited += f"; {gate.where}"
            fix = "take one of the nearest cells"
    return NotTried(
        state=State.UNAVAILABLE,
        reason=reason,
        source=cited,
        nearest=nearest_cells(cell, facts),
        fix=fix,
    )


def _absence(cell: Cell, facts: Facts) -> tuple[str, ...]:
    """Return the sources that say that a build does not exist; none if no source does.

    A release whose builds are all known says it for each Python and platform, too.
    """
    build = _build(cell, facts)
    if build is not None:
        return build.sources
    minor = minor_of(cell.torch)
    sources = [
        key
        for absence in facts.absences
        if absence.cuda == cell.cuda and Version(absence.first) <= Version(minor)
        for key in absence.sources
    ]
    matrix = facts.release_matrix.get(minor)
    return (*sources, matrix) if matrix else tuple(sources)


def _builds(release: Release) -> str:
    inside = [build.cuda for build in release.builds.values() if build.official]
    outside = [build.cuda for build in release.builds.values() if not build.official]
    text = _and(cuda_version(cuda) for cuda in sorted(inside))
    more = _and(cuda_version(cuda) for cuda in sorted(outside))
    return f"{text} ({more} outside the release matrix)" if more else text


def _target(cell: Cell) -> str:
    return f"CUDA {cell.cuda_version}, Python {cell.python}, {cell.platform}"


def _and(items: Iterable[str]) -> str:
    listed = list(items)
    return " and ".join(filter(None, (", ".join(listed[:-1]), *listed[-1:])))
