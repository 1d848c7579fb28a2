"""The nearest cells that exist, by rule: what to take instead of one that does not. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from packaging.version import Version

from torchproof.model.cell import Cell
from torchproof.model.versions import cuda_version, minor_of
from torchproof.upstream.facts import Facts
from torchproof.upstream.gpus import best_code, gpu_table


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
    same_torch = _published_cudas(cell, facts)
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


def _published_cudas(cell: Cell, facts: Facts) -> list[str]:
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


def serves(archs: Iterable[str], gpu: str, cuda: str) -> bool:
    """Tell whether a GPU (`sm_90`) can run some of the device code of a build for CUDA `12.8`."""
    target = gpu_table().find(gpu).arch
    return best_code(archs, target, cuda=cuda) is not None


def nearest_serving(cell: Cell, facts: Facts) -> tuple[str, ...]:
    """Return the same torch with the nearest CUDA that serves every GPU of the cell."""
    release = facts.release(cell.torch)
    names = [
        cuda
        for cuda in _published_cudas(cell, facts)
        if release
        and all(
            serves(release.builds[cuda].archs_on(cell.platform), gpu, cuda_version(cuda))
            for gpu in cell.gpus
        )
    ]
    return (replace(cell, cuda=_nearest_cuda(cell.cuda, names)).id,) if names else ()
