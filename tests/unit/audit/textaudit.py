"""Audit texts in tests: `findings({"Dockerfile": "FROM …"}, "dockerfile.unpinned")`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchproof.audit.facts import ImageFacts, Subject, TextFile
from torchproof.audit.rule import Rule, evaluate
from torchproof.audit.rules.recipes import base as baseimages
from torchproof.audit.rules.recipes import ci as pipelines
from torchproof.audit.rules.recipes import dockerfile, index
from torchproof.audit.rules.recipes import launch as recipe
from torchproof.audit.rules.recipes import launch_start as recipe_start
from torchproof.audit.rules.recipes import order as dockerorder
from torchproof.audit.rules.recipes import variables as dockervars
from torchproof.model.results import Finding, Level

RULES: tuple[Rule, ...] = (
    *baseimages.RULES,
    *dockerfile.RULES,
    *dockervars.RULES,
    *dockerorder.RULES,
    *index.RULES,
    *recipe.RULES,
    *recipe_start.RULES,
    *pipelines.RULES,
)


def facts_of(texts: Mapping[str, str]) -> ImageFacts:
    return ImageFacts(
        name="test",
        subject=Subject.TEXTS,
        texts=tuple(TextFile(path=path, text=text) for path, text in texts.items()),
    )


def findings(
    texts: Mapping[str, str] | str, rule: str = "", levels: Iterable[Level] = tuple(Level)
) -> list[Finding]:
    """Return the findings of one rule (or family), or of all, on texts (a str is a Dockerfile)."""
    if isinstance(texts, str):
        texts = {"Dockerfile": texts}
    chosen = [item for item in RULES if not rule or rule in (item.id, item.family)]
    assert chosen, rule
    return [found for found in evaluate(chosen, facts_of(texts)) if found.level in levels]


def grave(texts: Mapping[str, str] | str, rule: str = "") -> list[Finding]:
    """Return errors and warnings only."""
    return findings(texts, rule, (Level.ERROR, Level.WARNING))
