"""Digests: `sha256:…` of bytes, and of values by their canonical JSON."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, is_dataclass
from typing import Any

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def sha256_digest(data: bytes) -> str:
    """Return `sha256:…` of some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(text: object) -> bool:
    """Return whether a text is `sha256:` and 64 hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def canonical_json(value: Any) -> str:
    """Render a dataclass (or plain data) as JSON with sorted keys, for hashing."""
    data = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


def digest_of(value: Any) -> str:
    """Return `sha256:…` of a value's canonical JSON: equal values have equal digests."""
    return sha256_digest(canonical_json(value).encode())
