"""Does a combination exist, and where? Answers from the data, from a live index, or from a
wheelhouse; each answer carries its reason, its source and the nearest cell that exists. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from packaging.version import Version

from torchproof.cell import Cell
from torchproof.facts import Facts, Release, cuda_version, minor_of
from torchproof.index import PYPI, WHEELHOUSE
from torchproof.results import NotTried, State

Offer = tuple[str, str, str, str]
"""torch (public version), CUDA, Python, platform: `("2.9.1", "cu128", "3.11", "linux/amd64")`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What the indexes say now. An alias in neither mapping was not asked."""

    offers: Mapping[str, frozenset[Offer]] = field(default_factory=dict)
    """Alias → wheels of torch there. For `pypi`, only what was asked for."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Alias → why it gave no answer."""

    def versions(self) -> frozenset[str]:
        """Return every version of torch that some index offers."""
        return frozenset(offer[0] for offers in self.offers.values() for offer in offers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Where a cell's torch comes from, or why it comes from nowhere.

    `index` is an alias; `verdict` is None if the cell can be tried; `note` tells a difference
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
    cell: Cell, facts: Facts, live: Live | None = None, *, wheelhouse: bool = False
) -> Availability:
    """Say whether a cell can be tried. `wheelhouse`: the user's folder has its torch.

    A live index that answers overrules the data.
    """
    found = _torch(cell, facts, live or Live(), wheelhouse=wheelhouse)
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


def _torch(cell: Cell, facts: Facts, live: Live, *, wheelhouse: bool) -> Availability:
    offer: Offer = (cell.torch, cell.cuda, cell.python, cell.platform)
    known = facts.published(*offer)
    if wheelhouse:
        note = "" if known else "the wheelhouse gives what upstream never published"
        return Availability(index=WHEELHOUSE, note=note)
    home, own = home_of(cell, facts), f"pytorch/{cell.cuda}"
    for alias in dict.fromkeys((home, PYPI, own)):
        if offer in live.offers.get(alias, ()):
            note = "" if known else f"the index `{alias}` has it, though the data has not"
            return Availability(index=alias, note=note or _outside(cell, facts))
    asked = [alias for alias in dict.fromkeys((home, own)) if alias in live.offers]
    silent = [alias for alias in dict.fromkeys((home, own)) if alias in live.problems]
    if not known:
        said = f" (so says the index `{asked[-1]}`, too)" if own in live.offers else ""
        return Availability(index=home, verdict=_never(cell, facts, said))
    if silent:
        reasons = "; ".join(live.problems[alias] for alias in silent)
        return Availability(
            index=home,
            verdict=NotTried(
                state=State.BLOCKED,
                reason=f"upstream publishes it, but {reasons}",
                source=f"index `{silent[0]}`",
                fix="run where the index answers, or name a mirror as `indexes:` in matrix.yaml",
            ),
        )
    if asked:
        return Availability(
            index=home,
            verdict=NotTried(
                state=State.UNAVAILABLE,
                reason=f"{_and(f'the index `{alias}`' for alias in asked)} "
                f"{'has' if len(asked) == 1 else 'have'} no torch {cell.torch} for "
                f"{_target(cell)}, though the data says it was published",
                source=f"index `{asked[-1]}`",
                nearest=nearest_cells(cell, facts),
            ),
            note="the index overrules the data",
        )
    return Availability(index=home, note=_outside(cell, facts))


def _outside(cell: Cell, facts: Facts) -> str:
    release = facts.releases.get(cell.torch)
    build = release.builds.get(cell.cuda) if release else None
    if build is None or build.official:
        return ""
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
        fix="take a nearest cell, or bring a wheel of your own as `wheelhouse:`",
    )


def _no_cuda(cell: Cell, facts: Facts, said: str) -> NotTried:
    minor = minor_of(cell.torch)
    release = facts.release(cell.torch)
    has = _builds(release) if release else "no CUDA build that is known"
    reason = (
        f"torch {cell.torch} was never published for CUDA {cell.cuda_version}: it has {has}{said}"
    )
    sources = [
        key
        for absence in facts.absences
        if absence.cuda == cell.cuda and Version(absence.first) <= Version(minor)
        for key in absence.sources
    ]
    if minor in facts.release_matrix:
        sources.append(facts.release_matrix[minor])
    cited = facts.cite(tuple(sources))
    fix = "take a nearest cell, or bring a wheel that you built as `wheelhouse:`"
    for gate in facts.source_build:
        if gate.covers(cell.torch) and Version(cell.cuda_version) < Version(gate.minimum):
            reason += (
                f"; nor can it be built from source: CMake of {minor} refuses CUDA below "
                f'{gate.minimum} ("{gate.message}")'
            )
            cited += f"; {gate.where}"
            fix = "take a nearest cell"
    return NotTried(
        state=State.UNAVAILABLE,
        reason=reason,
        source=cited,
        nearest=nearest_cells(cell, facts),
        fix=fix,
    )


def _builds(release: Release) -> str:
    inside = [build.cuda for build in release.builds.values() if build.official]
    outside = [build.cuda for build in release.builds.values() if not build.official]
    text = _and(cuda_version(cuda) for cuda in sorted(inside))
    more = _and(cuda_version(cuda) for cuda in sorted(outside))
    return f"{text} ({more} outside the release matrix)" if more else text


def nearest_cells(cell: Cell, facts: Facts, *, itself: bool = False) -> tuple[str, ...]:
    """Return the ids of the nearest cells that the data knows, best first.

    Another patch of the same release goes alone, if it has this CUDA. The same torch with the
    nearest CUDA of the same major version runs on the same drivers, so it goes alone, too. Else
    first the nearest torch that has this CUDA (older before newer), then the same torch with the
    nearest CUDA. A newer CUDA is nearer than an older one.
    """
    if itself and facts.published(cell.torch, cell.cuda, cell.python, cell.platform):
        return (cell.id,)
    patches = [
        torch
        for torch in facts.releases
        if minor_of(torch) == minor_of(cell.torch)
        and facts.published(torch, cell.cuda, cell.python, cell.platform)
    ]
    if patches:
        return (_id(cell, torch=max(patches, key=Version)),)
    same_torch = _same_torch(cell, facts)
    major = cuda_version(cell.cuda).split(".")[0]
    same_major = [cuda for cuda in same_torch if cuda_version(cuda).split(".")[0] == major]
    if same_major:
        return (_id(cell, cuda=_nearest_cuda(cell.cuda, same_major)),)
    found = list(_other_python(cell, facts)) if _lacks_python(cell, facts) else []
    other = _nearest_torch(cell, facts)
    if other:
        found.append(_id(cell, torch=other))
    if same_torch:
        found.append(_id(cell, cuda=_nearest_cuda(cell.cuda, same_torch)))
    return tuple(found)


def _lacks_python(cell: Cell, facts: Facts) -> bool:
    release = facts.release(cell.torch)
    return release is not None and cell.python not in release.python_on(cell.platform)


def _same_torch(cell: Cell, facts: Facts) -> list[str]:
    release = facts.release(cell.torch)
    if release is None:
        return []
    return [
        cuda
        for cuda in release.builds
        if cuda != cell.cuda and facts.published(release.version, cuda, cell.python, cell.platform)
    ]


def _nearest_cuda(asked: str, names: Iterable[str]) -> str:
    target = Version(cuda_version(asked))
    versions = {Version(cuda_version(name)): name for name in names}
    newer = [version for version in versions if version >= target]
    return versions[min(newer) if newer else max(versions)]


def _nearest_torch(cell: Cell, facts: Facts) -> str | None:
    having = [
        Version(torch)
        for torch in facts.releases
        if facts.published(torch, cell.cuda, cell.python, cell.platform)
    ]
    asked = Version(cell.torch)
    older = [version for version in having if version < asked]
    if older:
        return str(max(older))
    newer = [version for version in having if version > asked]
    return facts.newest_patch(minor_of(str(min(newer)))) if newer else None


def _other_python(cell: Cell, facts: Facts) -> tuple[str, ...]:
    release = facts.release(cell.torch)
    if release is None:
        return ()
    wanted = Version(cell.python)
    near = sorted(
        release.python_on(cell.platform), key=lambda text: abs(Version(text).minor - wanted.minor)
    )
    for python in near:
        if python != cell.python:
            found = nearest_cells(replace(cell, python=python), facts, itself=True)
            if found:
                return found
    return ()


def _id(cell: Cell, *, torch: str | None = None, cuda: str | None = None) -> str:
    plain = replace(cell, cudnn=None, nccl=None, gpus=())
    return replace(plain, torch=torch or cell.torch, cuda=cuda or cell.cuda).id


def _target(cell: Cell) -> str:
    return f"CUDA {cell.cuda_version}, Python {cell.python}, {cell.platform}"


def _and(items: Iterable[str]) -> str:
    listed = list(items)
    return " and ".join(filter(None, (", ".join(listed[:-1]), *listed[-1:])))
