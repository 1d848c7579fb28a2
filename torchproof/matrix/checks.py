"""Checks names in matrix.yaml that refer to something elsewhere, so that typos show at once."""

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
"""Lists longer than this are shortened to their families (`size.*`)."""


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
        if not _is_http_url(url):
            raise InputError(
                f"`{url}` is not the URL of an index", where=where, fix="write `https://…/simple`"
            )


def _is_http_url(url: str) -> bool:
    """Return whether a text is an http(s) URL with a host and no impossible port."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    well_formed = not re.search(r"\s", url) and port != 0
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and well_formed


def check_hosts(matrix: Matrix) -> None:
    """Check the GPUs of `hosts:`. Raises InputError with the line."""
    for place, host in enumerate(matrix.hosts):
        try:
            gpu_table().find(host.gpu)
        except InputError as error:
            where = matrix.where(("hosts", place, "gpu"))
            raise InputError(error.message, where=where, fix=error.fix) from error


def check_names(matrix: Matrix, *, probes: Collection[str], rules: Collection[str]) -> None:
    """Check the names of probes and audit rules; patterns are allowed.

    Raises InputError with the line and a "did you mean".
    """

    def check(
        kind: str, known: Collection[str], location: Location, names: Collection[str]
    ) -> None:
        _check_known(matrix, kind, known, location, names)

    check("probe", probes, ("probes", "required"), matrix.probes.required)
    check("probe", probes, ("probes", "optional"), matrix.probes.optional)
    check("probe", probes, ("probes", "thresholds"), matrix.probes.thresholds)
    check("probe", probes, ("publish", "accept_unproven"), matrix.publish.accept_unproven)
    check("rule", rules, ("audit", "required"), matrix.audit.required or ())
    check("rule", rules, ("audit", "ignore"), [item.rule for item in matrix.audit.ignore])


def _check_known(
    matrix: Matrix, kind: str, known: Collection[str], location: Location, names: Collection[str]
) -> None:
    for place, name in enumerate(names):
        if not any(fnmatchcase(candidate, name) for candidate in known):
            key = name if location[-1] == "thresholds" else place
            raise InputError(
                f"there is no {kind} `{name}`",
                where=matrix.where((*location, key)),
                fix=did_you_mean(name, known) or f"known {kind}s: {_listed(known)}",
            )


def _listed(names: Collection[str]) -> str:
    """List names; a long list of rules is shortened to their families."""
    families = sorted({name.split(".")[0] + ".*" for name in names if "." in name})
    return ", ".join(families if len(names) > MANY and families else sorted(names))
