"""Reads what is known of upstream: the YAML files of `data/`, facts with sources and dates."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from torchproof._yaml import load_yaml


@cache
def read_data(name: str) -> Any:
    """Return the content of `data/NAME.yaml`, read once. Whoever gets it must not change it."""
    file = resources.files("torchproof.upstream") / "data" / f"{name}.yaml"
    return load_yaml(file.read_text(encoding="utf-8"))
