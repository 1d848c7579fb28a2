"""What is known of each cell before anything is built: requested, excluded, available or not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from torchproof.index.indexes import Indexes
from torchproof.index.wheelhouse import wheelhouse_torch
from torchproof.matrix.checks import check_names
from torchproof.matrix.expand import Request, expand
from torchproof.matrix.schema import Matrix
from torchproof.model.cell import Cell
from torchproof.model.results import NotTried, State
from torchproof.resolve.live_index import ask_indexes
from torchproof.upstream.availability import Availability, IndexOffers, judge
from torchproof.upstream.facts import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedCell:
    """One request and where its torch comes from."""

    request: Request
    availability: Availability

    @property
    def id(self) -> str:
        """The cell's name."""
        return self.request.id

    @property
    def cell(self) -> Cell:
        """The cell itself."""
        return self.request.cell

    @property
    def verdict(self) -> NotTried | None:
        """Why the cell is not to be tried: excluded, unavailable or blocked. None if it is."""
        if self.request.excluded:
            return NotTried(
                state=State.EXCLUDED,
                reason=self.request.excluded,
                source=self.request.where,
            )
        return self.availability.verdict


def indexes_of(matrix: Matrix, facts: Facts) -> Indexes:
    """Return the indexes of a matrix, with the wheelhouses of its cells."""
    houses = [matrix.wheelhouse, *(cell.wheelhouse for cell in matrix.cells)]
    return Indexes(
        pytorch=facts.pytorch_url,
        urls=matrix.indexes,
        wheelhouses=tuple(
            (matrix.folder / house).resolve() for house in dict.fromkeys(houses) if house
        ),
    )


def survey(
    matrix: Matrix,
    facts: Facts,
    indexes: Indexes,
    *,
    probes: Collection[str],
    rules: Collection[str],
) -> tuple[SurveyedCell, ...]:
    """Ask the indexes once, then judge every cell.

    `probes` and `rules` are the names that the matrix may use. Raises InputError like `expand`,
    and for the name of a probe or audit rule that does not exist.
    """
    check_names(matrix, probes=probes, rules=rules)
    live = ask_indexes(matrix, indexes)
    return tuple(
        SurveyedCell(request=request, availability=_judge(request, facts, live))
        for request in expand(matrix, facts, live.versions())
    )


def _judge(request: Request, facts: Facts, live: IndexOffers) -> Availability:
    cell = request.cell
    found = judge(cell, facts, live, wheelhouse=wheelhouse_torch(cell) is not None)
    if cell.wheelhouse is None or found.verdict is None:
        return found
    lacks = "has no wheel of it" if cell.wheelhouse.is_dir() else "is not there"
    reason = f"{found.verdict.reason}; the wheelhouse {cell.wheelhouse} {lacks}"
    return replace(found, verdict=replace(found.verdict, reason=reason))
