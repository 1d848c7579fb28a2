"""What is known of layers: recipe → digest, diff_id, size. Beside the lock, and in the cache.

A layer is a pure function of its recipe, so what one machine found out holds on all. The file
beside the lock is committed: with it, wheels whose layers the registry already has are not needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from torchproof._yaml import load_yaml
from torchproof.errors import HostError, InputError
from torchproof.model.digests import digest_of, is_digest
from torchproof.registry import OCI_LAYER_GZIP, Descriptor

RECIPE = 2
"""Raise this when the bytes of a layer change for equal inputs."""
HEADER = """\
# Made by `python build.py build --builder assemble`: what each layer of the image is. With it, a
# layer that the registry has already is neither downloaded nor built. Safe to delete.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """One layer. `size` is bytes of the compressed blob; `notes` say what slimming left alone."""

    key: str
    digest: str
    diff_id: str
    size: int
    notes: tuple[str, ...] = ()

    def descriptor(self, annotations: Mapping[str, str]) -> Descriptor:
        """Return the layer's descriptor in a manifest."""
        return Descriptor(
            media_type=OCI_LAYER_GZIP, digest=self.digest, size=self.size, annotations=annotations
        )


def recipe_key(inputs: Mapping[str, object]) -> str:
    """Return `sha256:…` of all that a layer's bytes depend on."""
    return digest_of({"recipe": RECIPE, **inputs})


@dataclass(slots=True)
class FactsStore:
    """Facts from the cache folder and from files beside locks. Safe for several processes."""

    folder: Path
    known: dict[str, LayerFacts] = field(default_factory=dict)

    def get(self, key: str) -> LayerFacts | None:
        """Return the facts of a recipe, or None."""
        if key not in self.known:
            found = _read_one(self._path(key))
            if found is not None and found.key == key:
                self.known[key] = found
        return self.known.get(key)

    def put(self, facts: LayerFacts) -> None:
        """Remember facts, here and in the cache."""
        self.known[facts.key] = facts
        write_whole(self._path(facts.key), json.dumps(asdict(facts)).encode())

    def load(self, path: Path) -> None:
        """Take in the facts beside a lock. Raise InputError if the file is damaged."""
        if not path.is_file():
            return
        try:
            data = load_yaml(path.read_text(encoding="utf-8"))
            found = [_facts(one) for one in data["layers"]]
        except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"not readable as layer facts: {error}", where=str(path), fix="delete the file"
            ) from error
        self.known |= {one.key: one for one in found}

    def _path(self, key: str) -> Path:
        return self.folder / f"{key.removeprefix('sha256:')}.json"


def write_facts(path: Path, layers: Iterable[tuple[str, LayerFacts]]) -> None:
    """Write the file beside a lock: (title, facts) bottom first; left alone if nothing changes."""
    rows: list[dict[str, Any]] = []
    for title, facts in layers:
        row = {"title": title, **asdict(facts), "notes": list(facts.notes)}
        if not facts.notes:
            del row["notes"]
        rows.append(row)
    text = HEADER + yaml.safe_dump({"layers": rows}, sort_keys=False, width=100)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_whole(path, text.encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file whole or not at all. Raise HostError if the disk does not take it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{id(data)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise HostError(f"cannot write {path}: {error.strerror}", fix="free some space") from error


def _read_one(path: Path) -> LayerFacts | None:
    """Read a file of the cache; a damaged one counts as none."""
    try:
        return _facts(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _facts(data: Any) -> LayerFacts:
    facts = LayerFacts(
        key=data["key"],
        digest=data["digest"],
        diff_id=data["diff_id"],
        size=data["size"],
        notes=tuple(data.get("notes") or ()),
    )
    digests = (facts.key, facts.digest, facts.diff_id)
    if not all(is_digest(one) for one in digests) or not isinstance(facts.size, int):
        raise ValueError("digests and sizes are malformed")
    return facts
