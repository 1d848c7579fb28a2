from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from torchproof.audit.catalogue import RULES, markdown
from torchproof.audit.rule import Rule

DOCUMENT = Path(__file__).parents[3] / "docs" / "audit-rules.md"


def test_every_rule_has_its_own_id() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_it_protects_from_its_remedy_and_source(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z]+\.[a-z0-9-]+", rule.id)
    assert rule.protects.endswith((".", '".'))
    assert rule.remedy
    assert not rule.remedy.endswith(".")
    assert rule.source


def test_every_family_stands_together() -> None:
    families = [rule.family for rule in RULES]
    assert [name for name, _ in zip(families, ["", *families], strict=False) if name != _] == list(
        dict.fromkeys(families)
    )


def test_the_document_is_what_the_rules_give() -> None:
    if os.environ.get("TORCHPROOF_UPDATE_GOLDEN"):
        DOCUMENT.write_text(markdown(), encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == markdown()
