"""What most verbs start from: the matrix, the facts about upstream, and the package indexes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchproof.audit.catalogue import RULES
from torchproof.index.indexes import Indexes
from torchproof.matrix.expand import load_matrix
from torchproof.matrix.schema import Matrix
from torchproof.probing.script import load_probes
from torchproof.resolve.survey import SurveyedCell, indexes_of, survey
from torchproof.upstream.facts import Facts, load_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """A parsed matrix file, and what its cells are resolved with."""

    matrix: Matrix
    facts: Facts
    indexes: Indexes

    def survey(self) -> tuple[SurveyedCell, ...]:
        """Ask the indexes what they offer, and judge every cell by it.

        Raises InputError if the matrix names something that does not exist.
        """
        return survey(
            self.matrix,
            self.facts,
            self.indexes,
            probes=[probe.name for probe in load_probes()],
            rules=[rule.id for rule in RULES],
        )


def load_inputs(file: Path) -> Inputs:
    """Read a matrix file and the data beside it. Raises InputError with file and line."""
    matrix, facts = load_matrix(file), load_facts()
    return Inputs(matrix=matrix, facts=facts, indexes=indexes_of(matrix, facts))
