"""matrix.yaml → requests: the cells that the user asks for. Pure except for reading the file."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version
from pydantic import ValidationError

from torchproof._yaml import Document, Location, parse_yaml, read_yaml
from torchproof.errors import InputError, did_you_mean
from torchproof.matrix.checks import check_hosts, check_indexes
from torchproof.matrix.messages import explain, nearest_cuda
from torchproof.matrix.schema import BaseEntry, CellEntry, Exclude, Matrix
from torchproof.model.cell import Base, Cell
from torchproof.model.versions import minor_of
from torchproof.upstream.facts import Facts

DEFAULT = Path("matrix.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One cell that was asked for. `where` is its place in the file, like `matrix.yaml:12`.

    `excluded` is the user's reason not to build it; empty if it is to be built.
    """

    cell: Cell
    where: str
    excluded: str = ""

    @property
    def id(self) -> str:
        """The cell's name."""
        return self.cell.id


def load_matrix(path: Path = DEFAULT) -> Matrix:
    """Read and check a matrix file. Raises InputError like `parse_matrix`."""
    return _check(read_yaml(path))


def parse_matrix(text: str, path: Path = DEFAULT) -> Matrix:
    """Check the text of a matrix file.

    Raises InputError with `where="matrix.yaml:LINE"` for text that is not YAML or not a mapping, a
    duplicate or unknown key, or a malformed value.
    """
    return _check(parse_yaml(text, path))


def _check(document: Document) -> Matrix:
    if not isinstance(document.data, dict):
        raise InputError(
            "this file must be a mapping of keys",
            where=document.where(()),
            fix='write `torch: ["2.9"]` and `cuda: [cu128]` on lines of their own',
        )
    try:
        matrix = Matrix.model_validate(document.data)
    except ValidationError as error:
        raise explain(error, document) from error
    matrix.attach(document)
    return matrix


def expand(
    matrix: Matrix, facts: Facts, live_versions: Collection[str] = ()
) -> tuple[Request, ...]:
    """Return the requests of a matrix, axes first, in the order of the file.

    `live_versions` are versions of torch that an index has in addition to those in the data. Raises
    InputError for a version or CUDA that does not exist, a cell that is listed twice, an `exclude`
    that matches nothing, and an unknown index or GPU.
    """
    check_indexes(matrix)
    check_hosts(matrix)
    expander = _Expander(matrix, facts, live_versions)
    requests: dict[str, Request] = {}
    used: set[int] = set()
    for cell, location in expander.cells():
        where = matrix.where(location)
        if cell.id in requests:
            raise InputError(
                f"the cell {cell.id} is listed twice, first at {requests[cell.id].where}",
                where=where,
                fix="remove one of them; cells differ only by versions, platform and gpus",
            )
        reasons = [
            (place, rule.reason)
            for place, rule in enumerate(matrix.exclude)
            if _matches(rule, cell)
        ]
        used |= {place for place, _ in reasons}
        requests[cell.id] = Request(
            cell=cell, where=where, excluded=reasons[0][1] if reasons else ""
        )
    for place, _ in enumerate(matrix.exclude):
        if place not in used:
            raise InputError(
                "this exclude matches no cell",
                where=matrix.where(("exclude", place)),
                fix="correct it, or remove it",
            )
    return tuple(requests.values())


def match_ids(ids: Sequence[str], only: str | None) -> tuple[str, ...]:
    """Return the cell ids that `--only` selects, by a glob or a prefix (`2.9.1-cu128`).

    Raises InputError, with a "did you mean", if there is none.
    """
    if only is None:
        return tuple(ids)
    found = [name for name in ids if fnmatch.fnmatchcase(name, only)]
    found = found or [name for name in ids if fnmatch.fnmatchcase(name, f"{only}-*")]
    if not found:
        close = did_you_mean(only, ids) or f"the cells are: {', '.join(ids)}"
        raise InputError(f"--only {only!r} matches no cell", fix=close)
    return tuple(found)


def select(requests: Sequence[Request], only: str | None) -> tuple[Request, ...]:
    """Return the requests that `--only` selects. Raises InputError if there is none."""
    names = set(match_ids([request.id for request in requests], only))
    return tuple(request for request in requests if request.id in names)


def _matches(rule: Exclude, cell: Cell) -> bool:
    return (
        rule.torch in (None, cell.torch, minor_of(cell.torch))
        and rule.cuda in (None, cell.cuda)
        and rule.python in (None, cell.python)
        and rule.platform in (None, cell.platform)
    )


class _Expander:
    """Turns axes and entries into cells, checking names against what is known to exist."""

    def __init__(self, matrix: Matrix, facts: Facts, live_versions: Collection[str]) -> None:
        self._matrix = matrix
        self._facts = facts
        self._versions = sorted({*facts.releases, *live_versions}, key=Version)

    def cells(self) -> Iterator[tuple[Cell, Location]]:
        matrix = self._matrix
        for torch_place, torch in enumerate(matrix.torch):
            for cuda_place, cuda in enumerate(matrix.cuda):
                entry = CellEntry(torch=torch, cuda=cuda)
                self._check_cuda(entry, ("cuda", cuda_place))
                for python in matrix.python:
                    for platform in matrix.platform:
                        location = ("torch", torch_place)
                        yield self._cell(entry, python, platform, location), location
        for place, entry in enumerate(matrix.cells):
            location = ("cells", place)
            self._check_cuda(entry, (*location, "cuda"))
            for python in (entry.python,) if entry.python else matrix.python:
                for platform in (entry.platform,) if entry.platform else matrix.platform:
                    yield self._cell(entry, python, platform, location), location

    def _cell(self, entry: CellEntry, python: str, platform: str, location: Location) -> Cell:
        options = self._matrix.options
        compiles = options.compile if entry.compile is None else entry.compile
        rdma = options.rdma if entry.rdma is None else entry.rdma
        wheelhouse = entry.wheelhouse or self._matrix.wheelhouse
        extras = options.extras if entry.extras is None else entry.extras
        self._check_extras(extras, location)
        return Cell(
            torch=self._torch(entry, location),
            cuda=entry.cuda,
            python=python,
            platform=platform,
            cudnn=entry.cudnn,
            nccl=entry.nccl,
            gpus=tuple(sorted(set(entry.gpus))),
            extras=tuple(sorted(extras)),
            compile=compiles,
            rdma=rdma,
            wheelhouse=(self._matrix.folder / wheelhouse).resolve() if wheelhouse else None,
            base=self._base(entry.base or self._matrix.base, compiles, rdma, location),
        )

    def _torch(self, entry: CellEntry, location: Location) -> str:
        asked = entry.torch
        known = [version for version in self._versions if minor_of(version) == asked]
        if known:
            return known[-1]
        if asked in self._versions:
            return asked
        if (entry.wheelhouse or self._matrix.wheelhouse) and asked.count(".") == 2:
            return asked
        minors = list(dict.fromkeys(minor_of(version) for version in self._versions))
        raise InputError(
            f"there is no torch {asked}",
            where=self._matrix.where((*location, "torch") if location[0] == "cells" else location),
            fix=did_you_mean(asked, [*self._versions, *minors])
            or f"known releases: {minors[0]} to {minors[-1]}",
        )

    def _check_cuda(self, entry: CellEntry, location: Location) -> None:
        names = self._facts.cuda_names()
        if entry.cuda in names or entry.wheelhouse or self._matrix.wheelhouse:
            return
        raise InputError(
            f"there is no CUDA build named {entry.cuda}",
            where=self._matrix.where(location),
            fix=nearest_cuda(entry.cuda, names) or f"known builds: {', '.join(names)}",
        )

    def _check_extras(self, extras: Sequence[str], location: Location) -> None:
        for text in extras:
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                raise InputError(
                    f"`{text}` is not a valid requirement: {str(error).splitlines()[0]}",
                    where=self._matrix.where(
                        (*location, "extras") if location[0] == "cells" else ("options", "extras")
                    ),
                    fix="write it as for pip: `numpy`, `deepspeed==0.18.2`",
                ) from None
            if requirement.name.lower() == "torch":
                raise InputError(
                    "`torch` cannot be an extra: the cell names its version",
                    where=self._matrix.where(location),
                    fix="remove it from `extras`",
                )

    def _base(self, entry: BaseEntry, compiles: bool, rdma: bool, location: Location) -> Base:
        distributions = self._facts.distributions
        if entry.bootstrap is not None and entry.bootstrap not in distributions:
            raise InputError(
                f"the distribution {entry.bootstrap!r} cannot be bootstrapped",
                where=self._matrix.where(
                    (*location, "base") if location[0] == "cells" else ("base",)
                ),
                fix=did_you_mean(entry.bootstrap, distributions)
                or f"known distributions: {', '.join(distributions)}; or give an `image` by digest",
            )
        lists = distributions[entry.bootstrap or next(iter(distributions))].packages
        packages = {*entry.packages, *lists["python"]}
        packages |= set(lists["compile"]) if compiles else set()
        packages |= set(lists["rdma"]) if rdma else set()
        return Base(image=entry.image, bootstrap=entry.bootstrap, packages=tuple(sorted(packages)))
