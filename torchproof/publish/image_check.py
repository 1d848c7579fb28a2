"""What an image really carries, read from its files, and compared with what its tags would say."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchproof.errors import CellError
from torchproof.image.layer_tar import LayerTar, MemberKind, OpaqueDirectory, Removed
from torchproof.image.stored_image import Image
from torchproof.model.versions import cuda_number, cuda_version
from torchproof.report.models import CellModel

_INFO = re.compile(
    r"(?:^|/)lib/python(?P<python>\d+\.\d+)/site-packages/(?P<info>[^/]+)\.dist-info$"
)
_CUDA = re.compile(r"^cuda(?:\s*:[^=]+)?\s*=\s*['\"](?P<cuda>\d+\.\d+)", re.MULTILINE)
_VERSION_FILE = "/site-packages/torch/version.py"
_DPKG = "/var/lib/dpkg/status"


@dataclass(slots=True, kw_only=True)
class Contents:
    """Distributions by folder of their metadata, and the text of torch's version file by path."""

    infos: set[str] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)
    dpkg: str = ""

    def remove(self, path: str) -> None:
        """Take away what a layer above removed."""
        inside = path + "/"
        self.infos = {one for one in self.infos if one != path and not one.startswith(inside)}
        for one in [one for one in self.versions if one == path or one.startswith(inside)]:
            del self.versions[one]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Versions found in an image; empty where there is none."""

    torch: str = ""
    cuda: str = ""
    cudnn: str = ""
    nccl: str = ""
    python: str = ""
    distributions: tuple[tuple[str, str], ...] = ()
    """Python distributions as (name, version), sorted."""
    packages: tuple[tuple[str, str, str], ...] = ()
    """The base's packages as (name, version, architecture), sorted."""


def look_inside(image: Image) -> Inside:
    """Read the versions of torch and what it brings from an image's files.

    Raises LayerError for a layer that is damaged, or has a name that climbs out of the image.
    """
    contents = Contents()
    for number, layer in enumerate(image.layers, 1):
        _read_layer(LayerTar(layer.open(), f"layer {number} ({layer.diff_id})"), contents)
    return _summary(contents)


def differences(inside: Inside, image: Image, cell: CellModel) -> tuple[str, ...]:
    """Say where an image's files, its labels and the report's cell disagree."""
    labels = image.labels
    asked = {
        "torch": cell.torch,
        "CUDA": cuda_version(cell.cuda) if cuda_number(cell.cuda) else "",
        "cuDNN": cell.cudnn or "",
        "NCCL": cell.nccl or "",
        "Python": cell.python,
    }
    files = {
        "torch": inside.torch,
        "CUDA": inside.cuda,
        "cuDNN": inside.cudnn,
        "NCCL": inside.nccl,
        "Python": inside.python,
    }
    said = {name: labels.get(f"torchproof.{name.lower()}", "") for name in asked}
    said |= {"cell": labels.get("torchproof.cell", ""), "lock": labels.get("torchproof.lock", "")}
    asked |= {"cell": cell.id, "lock": cell.lock_digest}
    found = [
        f"{name} in the image is {files[name] or 'missing'}, not {asked[name]}"
        for name in files
        if asked[name] and not _same(files[name], asked[name])
    ]
    found += [
        f"the image's label says {name} {said[name] or 'nothing'}, not {asked[name]}"
        for name in asked
        if asked[name] and not _same(said[name], asked[name])
    ]
    return tuple(found)


def check_inside(image: Image, cell: CellModel) -> Inside:
    """Return what an image carries. Raise `CellError` unless it is what its tags would say."""
    inside = look_inside(image)
    found = differences(inside, image, cell)
    if found:
        raise CellError(
            f"the image is not what its tags would say: {'; '.join(found)}",
            where=cell.id,
            fix="build the cell again from its lock; nothing was tagged",
        )
    return inside


def _read_layer(layer: LayerTar, contents: Contents) -> None:
    added = Contents()
    for event in layer.strictly():
        if isinstance(event, Removed | OpaqueDirectory):
            contents.remove(event.path)
            continue
        path, is_file = event.path, event.kind is MemberKind.FILE
        folder = posixpath.dirname(path)
        if _INFO.search(folder):
            added.infos.add(folder)
        elif path.endswith(_VERSION_FILE) and is_file:
            added.versions[path] = event.read().decode(errors="replace")
        elif path == _DPKG and is_file:
            contents.dpkg = event.read().decode(errors="replace")
    contents.infos |= added.infos
    contents.versions |= added.versions


def _summary(contents: Contents) -> Inside:
    versions: dict[str, str] = {}
    python = ""
    for folder in sorted(contents.infos):
        found = _INFO.search(folder)
        if found is None:
            continue
        name, _, version = found["info"].rpartition("-")
        versions[canonicalize_name(name)] = version
        if canonicalize_name(name) == "torch":
            python = found["python"]
    text = next(iter(contents.versions.values()), "")
    cuda = _CUDA.search(text)
    return Inside(
        torch=versions.get("torch", ""),
        cuda=cuda["cuda"] if cuda else "",
        cudnn=_one_of(versions, "nvidia-cudnn-cu"),
        nccl=_one_of(versions, "nvidia-nccl-cu"),
        python=python,
        distributions=tuple(sorted(versions.items())),
        packages=_packages(contents.dpkg),
    )


def _packages(status: str) -> tuple[tuple[str, str, str], ...]:
    """Read dpkg's status file (deb822): the installed packages."""
    found = []
    for block in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.splitlines() if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append((fields["Package"], fields["Version"], fields.get("Architecture", "")))
    return tuple(sorted(found))


def _one_of(versions: dict[str, str], prefix: str) -> str:
    return next((version for name, version in versions.items() if name.startswith(prefix)), "")


def _same(found: str, asked: str) -> bool:
    """Compare versions without their local part: `2.9.1+cu128` is 2.9.1."""
    if found == asked:
        return True
    try:
        return Version(found).public == Version(asked).public
    except InvalidVersion:
        return False
