"""Audit something: take its facts, ask every rule. Used by the verb, the pipeline and users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchproof.audit.catalogue import RULES
from torchproof.audit.facts import ImageFacts, ReportedSize
from torchproof.audit.reading.open_subject import open_anything, open_directory, open_layout
from torchproof.audit.reading.wheels import open_wheels
from torchproof.audit.rule import evaluate
from torchproof.model.declared_host import DeclaredHost
from torchproof.model.lock import Lock
from torchproof.model.results import Built, Finding

OF_WHEELS: Final = ("link", "duplicates", "pins", "architectures", "driver", "size")
"""Families that wheels alone can break: the others look at the system and at how it is started."""


def audit_tree(root: Path) -> list[Finding]:
    """Audit an unpacked root or a virtual environment. Raises InputError if it is neither."""
    return evaluate(RULES, open_directory(root))


def audit_image(
    name: str, hosts: Iterable[DeclaredHost] = (), *, lock: Lock | None = None
) -> list[Finding]:
    """Audit an image of an engine or a registry, a layout, an archive or a directory, by name.

    With `lock`, what is installed is compared with it.

    Raises InputError if none is found, CellError if what is found is not one, HostError if
    neither engine nor registry answers.
    """
    return evaluate(RULES, replace(open_anything(name), hosts=tuple(hosts), lock=lock))


def audit_wheels(
    lock: Lock, paths: Mapping[str, Path], hosts: Iterable[DeclaredHost] = ()
) -> list[Finding]:
    """Audit the wheels of a lock before anything is built; `paths` maps file names to wheels."""
    rules = [rule for rule in RULES if rule.family in OF_WHEELS]
    return evaluate(rules, replace(open_wheels(lock, paths), hosts=tuple(hosts)))


def audit_built(
    built: Built,
    lock: Lock,
    *,
    hosts: Iterable[DeclaredHost] = (),
    before: ReportedSize | None = None,
) -> list[Finding]:
    """Audit what a builder made of a lock: an image, an OCI layout or an environment.

    `before` is the size that the last report has of the same cell, for the rule on growth.
    """
    return evaluate(RULES, facts_of_built(built, lock, hosts=hosts, before=before))


def facts_of_built(
    built: Built,
    lock: Lock,
    *,
    hosts: Iterable[DeclaredHost] = (),
    before: ReportedSize | None = None,
) -> ImageFacts:
    """Take the facts of what a builder made, with its lock beside them."""
    layout = Path(built.ref)
    if (layout / "oci-layout").is_file():
        facts = open_layout(layout, built.digest)
    else:
        facts = open_anything(built.ref)
    return replace(facts, lock=lock, hosts=tuple(hosts), before=before)
