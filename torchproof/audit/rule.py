"""A rule: one fault, what it protects from, and how it shows in the facts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchproof.model.results import Finding, Level

if TYPE_CHECKING:
    from torchproof.audit.facts import ImageFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One check. `id` is `family.name`; `source` is a public report or the specification.

    `evaluate` does no I/O; it yields findings made with `rule.finding`, none if all is well.
    """

    id: str
    protects: str
    """What goes wrong for users of an image that breaks the rule, in one sentence."""
    remedy: str
    """What to do about it; a finding may say it more exactly."""
    source: str
    evaluate: Callable[[Rule, ImageFacts], Iterable[Finding]]

    @property
    def family(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]

    def error(self, message: str, *, where: str = "", fix: str = "") -> Finding:
        """Make a finding that fails a cell where the rule is required."""
        return self._finding(Level.ERROR, message, where, fix)

    def warning(self, message: str, *, where: str = "", fix: str = "") -> Finding:
        """Make a finding that a reader should look at."""
        return self._finding(Level.WARNING, message, where, fix)

    def note(self, message: str, *, where: str = "", fix: str = "") -> Finding:
        """Make a finding that is worth knowing, and no fault."""
        return self._finding(Level.NOTE, message, where, fix)

    def _finding(self, level: Level, message: str, where: str, fix: str) -> Finding:
        return Finding(
            rule=self.id, level=level, message=message, fix=fix or self.remedy, where=where
        )


Check = Callable[[Rule, "ImageFacts"], Iterable[Finding]]


def rules_of(name: str, *rows: tuple[str, Check, str, str, str]) -> tuple[Rule, ...]:
    """Make the rules of one family from rows of (name, check, protects, remedy, source)."""
    return tuple(
        Rule(id=f"{name}.{row}", evaluate=check, protects=protects, remedy=remedy, source=source)
        for row, check, protects, remedy, source in rows
    )


def evaluate(rules: Iterable[Rule], facts: ImageFacts) -> list[Finding]:
    """Return the findings of the rules: those made while reading first, then by rule."""
    findings = list(facts.problems)
    for rule in rules:
        findings += rule.evaluate(rule, facts)
    return findings
