"""What a build of the container engine gets: its folder, its secrets, its network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchproof.engines.installer import (
    IndexUrls,
    ca_bundle,
    installer_index,
    pip_config,
    uv_config,
)
from torchproof.errors import CellError, DriftError
from torchproof.model.lock import WHEELHOUSE, Lock

NETWORK = "TORCHPROOF_BUILD_NETWORK"
"""`host`, `default` or `auto`: the network of a build. `auto` is host for an index on loopback."""


def check_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Raise DriftError if the cell's folder has a file that is not what the lock gives."""
    for name, text in files.items():
        file = folder / name
        if file.exists() and file.read_text(encoding="utf-8") != text:
            raise DriftError(
                f"{file} is not what its lock gives",
                fix="run `python build.py generate`; what you want changed belongs in matrix.yaml",
            )


def write_context(
    context: Path, files: Mapping[str, str], lock: Lock, wheelhouses: Sequence[Path]
) -> None:
    """Write the folder that a build sees: `files`, and the cell's wheels of the user's own.

    Raises CellError if one of those is in no wheelhouse.
    """
    context.mkdir()
    for name, text in files.items():
        (context / name).write_text(text, encoding="utf-8")
    for wheel in lock.wheels:
        if wheel.index != WHEELHOUSE:
            continue
        (context / WHEELHOUSE).mkdir(exist_ok=True)
        found = [house / wheel.filename for house in wheelhouses]
        source = next((file for file in found if file.is_file()), None)
        if source is None:
            raise CellError(
                f"{lock.cell}: {wheel.filename} is in no wheelhouse of matrix.yaml",
                fix="put the wheel back, or lock the cell again",
            )
        shutil.copyfile(source, context / WHEELHOUSE / wheel.filename)


def build_network(urls: IndexUrls) -> str | None:
    """Return the network that a build asks for; None for the engine's own choice."""
    match os.environ.get(NETWORK, "auto"):
        case "auto":
            return "host" if urls.loopback else None
        case "default":
            return None
        case other:
            return other


def write_secrets(folder: Path, urls: IndexUrls) -> dict[str, Path]:
    """Write what a build may read and no layer may hold."""
    folder.mkdir(mode=0o700)
    secrets = {"uv.toml": uv_config(urls), "pip.conf": pip_config(installer_index(urls))}
    for name, text in secrets.items():
        (folder / name).write_text(text, encoding="utf-8")
    paths = {name: folder / name for name in secrets}
    bundle = ca_bundle(os.environ)
    return paths | ({"ca": bundle} if bundle else {})
