"""Wheels of the user's own: which torch of a folder is a cell's."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchproof.index.wheel_tags import target_tags
from torchproof.model.cell import Cell

_CUDA = re.compile(r"""^cuda\b.*=\s*['"]([\d.]+)['"]""", re.MULTILINE)


def wheelhouse_torch(cell: Cell) -> Path | None:
    """Return the wheel of torch in the cell's wheelhouse that is this cell's, if there is one.

    Its version and target must be the cell's, and so must its CUDA: by its local version
    (`2.9.1+cu121`), or without one by `torch/version.py` inside.
    """
    fitting = set(target_tags(cell.python, cell.platform))
    for file in sorted(cell.wheelhouse.glob("torch-*.whl")) if cell.wheelhouse else ():
        try:
            name, version, _, tags = parse_wheel_filename(file.name)
        except InvalidWheelFilename:
            continue
        if name != "torch" or version.public != cell.torch or not fitting & tags:
            continue
        if version.local == cell.cuda:
            return file
        if version.local is None and _cuda_inside(file) in (None, cell.cuda_version):
            return file
    return None


def _cuda_inside(file: Path) -> str | None:
    """Return the CUDA (`12.1`) that a wheel of torch was built for; None if it does not say."""
    try:
        with zipfile.ZipFile(file) as archive:
            text = archive.read("torch/version.py").decode(errors="replace")
    except (OSError, KeyError, zipfile.BadZipFile):
        return None
    found = _CUDA.search(text)
    return found[1] if found else None
