"""Index aliases and the URLs that they stand for, and where downloads are kept.

Locks name an alias, never a URL; the URL of a file is asked of its index when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from platformdirs import user_cache_dir

from torchproof.errors import InputError
from torchproof.model.lock import PYPI


def cache_dir() -> Path:
    """Return where torchproof keeps downloads: $TORCHPROOF_CACHE, or the user's cache folder."""
    return Path(os.environ.get("TORCHPROOF_CACHE") or user_cache_dir("torchproof"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """Aliases → places. `pytorch` is the URL above the indexes of each CUDA.

    `urls` are the user's own (`indexes:` of matrix.yaml) and go before it.
    """

    pytorch: str
    urls: Mapping[str, str] = field(default_factory=dict)
    wheelhouses: tuple[Path, ...] = ()

    def url(self, alias: str) -> str | None:
        """Return the URL of an alias; None for `pypi` as pip and uv are configured.

        Raises InputError for an alias that nothing defines.
        """
        if alias in self.urls:
            return self.urls[alias]
        if alias == PYPI:
            return None
        group, _, cuda = alias.partition("/")
        if group == "pytorch" and cuda:
            return f"{self.urls.get('pytorch', self.pytorch).rstrip('/')}/{cuda}"
        raise InputError(
            f"there is no index with the alias {alias!r}",
            fix=f"name its URL in matrix.yaml: indexes: {{{alias}: https://…}}",
        )
