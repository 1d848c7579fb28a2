"""What a cell must prove to be verified: required probes and audit rules. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredProbe:
    """A probe that a cell must pass, on a host with at least `gpus` GPUs."""

    name: str
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a cell must prove. `rules` and `ignored` are patterns of audit rule ids (`link.*`)."""

    probes: tuple[RequiredProbe, ...] = ()
    rules: tuple[str, ...] = ("*",)
    ignored: tuple[str, ...] = ()

    def requires_rule(self, rule: str) -> bool:
        """Tell whether an error of this audit rule fails a cell."""
        return _matches(rule, self.rules) and not _matches(rule, self.ignored)


def _matches(rule: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(rule, pattern) for pattern in patterns)
