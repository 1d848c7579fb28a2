"""Names in matrix.yaml that stand for something elsewhere: are they known? A typo must not wait."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from torchproof._yaml import Location
from torchproof.errors import InputError, did_you_mean
from torchproof.matrix.schema import Matrix
from torchproof.upstream.gpus import gpu_table

MANY = 40
"""Names beyond which a list is told by its families."""


def check_indexes(matrix: Matrix) -> None:
    """Check the aliases and URLs of `indexes:`. Raises InputError with the line."""
    for alias, url in matrix.indexes.items():
        where = matrix.where(("indexes", alias))
        if not re.fullmatch(r"pypi|pytorch(/cu\d{3})?", alias):
            raise InputError(
                f"nothing uses an index with the alias `{alias}`",
                where=where,
                fix=did_you_mean(alias, ("pypi", "pytorch"))
                or "the aliases are `pypi`, `pytorch` and `pytorch/cu128` for each CUDA",
            )
        if not _reachable(url):
            raise InputError(
                f"`{url}` is no URL of an index", where=where, fix="write `https://…/simple`"
            )


def _reachable(url: str) -> bool:
    """Return whether a URL names a host, and perhaps a port, that HTTP could be spoken with."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    whole = not re.search(r"\s", url) and port != 0
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and whole


def check_hosts(matrix: Matrix) -> None:
    """Check the GPUs of `hosts:`. Raises InputError with the line."""
    for place, host in enumerate(matrix.hosts):
        try:
            gpu_table().find(host.gpu)
        except InputError as error:
            where = matrix.where(("hosts", place, "gpu"))
            raise InputError(error.message, where=where, fix=error.fix) from error


def check_names(matrix: Matrix, *, probes: Collection[str], rules: Collection[str]) -> None:
    """Check the names (in `audit` and `publish` also patterns) of probes and audit rules.

    Raises InputError with the line and a "did you mean".
    """
    asked = matrix.probes
    _known(matrix, "probe", probes, ("probes", "required"), asked.required)
    _known(matrix, "probe", probes, ("probes", "optional"), asked.optional)
    _known(matrix, "probe", probes, ("probes", "thresholds"), asked.thresholds)
    _known(matrix, "probe", probes, ("publish", "accept_unproven"), matrix.publish.accept_unproven)
    _known(matrix, "rule", rules, ("audit", "required"), matrix.audit.required or ())
    ignored = [item.rule for item in matrix.audit.ignore]
    _known(matrix, "rule", rules, ("audit", "ignore"), ignored)


def _known(
    matrix: Matrix, kind: str, known: Collection[str], location: Location, names: Collection[str]
) -> None:
    for place, name in enumerate(names):
        if not any(fnmatchcase(one, name) for one in known):
            key = name if location[-1] == "thresholds" else place
            raise InputError(
                f"there is no {kind} `{name}`",
                where=matrix.where((*location, key)),
                fix=did_you_mean(name, known) or f"known are: {_listed(known)}",
            )


def _listed(names: Collection[str]) -> str:
    """List names, and no more than a reader takes in: of many rules, their families."""
    families = sorted({name.split(".")[0] + ".*" for name in names if "." in name})
    return ", ".join(families if len(names) > MANY and families else sorted(names))
