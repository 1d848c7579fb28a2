"""An image as a container engine describes it: which layer is which, whose configuration it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchproof.image.config import image_config
from torchproof.image.layers import Plan, make_plan
from torchproof.model.lock import LayerName, Lock
from torchproof.model.results import ImageLayer

EMPTY_LAYER = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
"""sha256 of a tar without members (1024 zero bytes)."""


def name_layers(
    digests: list[str], history: list[dict[str, Any]], plan: Plan
) -> tuple[ImageLayer, ...]:
    """Name the file-system layers of an image after the layers of its plan.

    `digests` are bottom first; `history` is the engine's: topmost first, with the steps that change
    no files. Everything below the first step of the plan is the base.
    """
    names = {f"requirements=/run/{layer.name}.txt": layer.name for layer in plan.layers}
    names |= {"-m venv": LayerName.PYTHON, "/etc/passwd": LayerName.CONFIG}
    steps, base = [], []
    for entry in reversed(history):
        by, size = entry.get("CreatedBy") or "", int(entry["Size"])
        name = next((name for mark, name in names.items() if mark in by), None)
        if name is not None:
            steps.append((name, size))
        elif size and not steps:
            base.append((LayerName.BASE, size))
    # BuildKit turns WORKDIR into a layer without files, which belongs to config, wherever it is.
    filled = [digest for digest in digests if digest != EMPTY_LAYER]
    below = len(filled) - len(steps)
    base = [*base, *[(LayerName.BASE, 0)] * below][:below]
    named = dict(zip(filled, [*base, *steps], strict=False))
    return tuple(
        ImageLayer(name=name, digest=digest, size=size)
        for digest in digests
        for name, size in [named.get(digest, (LayerName.CONFIG, 0))]
    )


def has_config(attributes: Mapping[str, Any], lock: Lock) -> bool:
    """Tell whether an image has the configuration that its lock gives.

    `attributes` are what the engine's inspection returns.
    """
    wanted, config = image_config(lock, make_plan(lock)), attributes["Config"]
    env = dict(item.partition("=")[::2] for item in config.get("Env") or ())
    return (
        wanted.env.items() <= env.items()
        and wanted.labels.items() <= (config.get("Labels") or {}).items()
        and (config["User"], config["WorkingDir"]) == (wanted.user, wanted.workdir)
        and tuple(config.get("Cmd") or ()) == wanted.cmd
        and tuple(config.get("Entrypoint") or ()) == wanted.entrypoint
    )
