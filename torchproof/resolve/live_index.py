"""Asks the indexes what they have now: every index once, side by side, with short timeouts."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import httpx
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchproof.errors import CellError, TorchproofError
from torchproof.index.indexes import Indexes
from torchproof.index.simple_api import TIMEOUT, fetch_page
from torchproof.index.uv import Resolved, Target, WheelFile, compile_requirements
from torchproof.matrix.schema import Matrix
from torchproof.model.lock import PYPI
from torchproof.model.platforms import platform_of_tag
from torchproof.model.versions import cuda_name
from torchproof.resolve.resolver import CUDART
from torchproof.upstream.availability import IndexOffers, Offer

_PARALLEL = 8


def ask_indexes(matrix: Matrix, indexes: Indexes) -> IndexOffers:
    """Ask each index that the matrix could need for its wheels of torch.

    Never raises for an index that does not answer: the reason is in `problems`.
    """
    versions = dict.fromkeys((*matrix.torch, *(cell.torch for cell in matrix.cells)))
    cudas = dict.fromkeys((*matrix.cuda, *(cell.cuda for cell in matrix.cells)))
    pythons = (*matrix.python, *(cell.python for cell in matrix.cells if cell.python))
    platforms = (*matrix.platform, *(cell.platform for cell in matrix.cells if cell.platform))
    targets = [
        Target(python=python, platform=platform)
        for python, platform in product(dict.fromkeys(pythons), dict.fromkeys(platforms))
    ]
    offers: dict[str, frozenset[Offer]] = {}
    problems: dict[str, str] = {}
    with httpx.Client(timeout=TIMEOUT, follow_redirects=True) as client, _pool() as pool:
        pages = {
            f"pytorch/{cuda}": pool.submit(
                fetch_page, indexes.url(f"pytorch/{cuda}") or "", "torch", client
            )
            for cuda in cudas
        }
        plain = [
            pool.submit(_ask_pypi, torch, target, indexes)
            for torch, target in product(versions, targets)
        ]
        for alias, page in pages.items():
            try:
                offers[alias] = frozenset(_offers(page.result(), alias.partition("/")[2]))
            except TorchproofError as error:
                problems[alias] = error.message
        found: set[Offer] = set()
        for answer in plain:
            try:
                found |= answer.result()
            except TorchproofError as error:
                problems[PYPI] = error.message
    if found or PYPI not in problems:
        offers[PYPI] = frozenset(found)
    return IndexOffers(offers=offers, problems=problems)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_PARALLEL)


def _ask_pypi(torch: str, target: Target, indexes: Indexes) -> set[Offer]:
    """Return what the default index resolves a version of torch to; nothing if it has none."""

    def ask(requirement: str) -> tuple[Resolved, ...]:
        return compile_requirements([requirement], target, default_index=indexes.url(PYPI))

    try:
        packages = ask(f"torch=={torch}" if torch.count(".") == 2 else f"torch=={torch}.*")
        public, _, local = _torch_version(packages).partition("+")
        if local:  # a mirror has builds of several indexes; the plain one is meant here
            packages = ask(f"torch==={public}")
    except CellError:
        return set()
    return {(public, cuda, target.python, target.platform) for cuda in _cudas(packages)}


def _torch_version(packages: Iterable[Resolved]) -> str:
    return next((package.version for package in packages if package.name == "torch"), "")


def _cudas(packages: Iterable[Resolved]) -> list[str]:
    """Return the CUDA that a resolution of torch brings, by its runtime wheel; none for CPU."""
    runtimes = [package.version for package in packages if CUDART.fullmatch(package.name)]
    return [cuda_name(version) for version in runtimes]


def _offers(wheels: Iterable[WheelFile], cuda: str) -> Iterable[Offer]:
    for wheel in wheels:
        try:
            name, version, _, tags = parse_wheel_filename(wheel.filename)
        except InvalidWheelFilename:
            continue
        if name != "torch" or version.local not in (None, cuda):
            continue
        if version.is_prerelease or wheel.yanked:
            continue
        for tag in tags:
            platform = platform_of_tag(tag.platform)
            plain = tag.interpreter.startswith("cp3") and tag.abi == tag.interpreter
            if platform and plain:
                python = f"3.{tag.interpreter[3:]}"
                yield version.public, cuda, python, platform
