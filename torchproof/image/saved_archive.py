"""The archive that `docker save` writes, read in place: nothing of it is unpacked."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from torchproof.errors import HostError
from torchproof.image.stored_image import Image, LayerSource, file_chunks


def from_saved(saved: Path, digest: str) -> Image:
    """Read the archive of `docker save`; old and new engines both write its manifest.json.

    `digest` names the image in errors. Raises HostError if the archive holds no image.
    """
    where = f"engine image {digest}"
    with tarfile.open(saved, "r:") as archive:
        members = {one.name: one for one in archive.getmembers()}
        try:
            described = json.loads(_content(archive, members["manifest.json"]))[0]
            config = _content(archive, members[described["Config"]])
            diff_ids = json.loads(config)["rootfs"]["diff_ids"]
            places = [_follow(members, name) for name in described["Layers"]]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise HostError(f"the engine saved no image: {error!r}", where=where) from error
    layers = tuple(
        LayerSource(
            diff_id=diff_id, open=partial(file_chunks, saved, place.offset_data, place.size)
        )
        for diff_id, place in zip(diff_ids, places, strict=True)
    )
    return Image(config=config, layers=layers)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return file.read() if file else b""


def _follow(members: Mapping[str, tarfile.TarInfo], name: str) -> tarfile.TarInfo:
    """Return a member; equal layers are links in the archives of old engines."""
    member = members[name]
    if not member.issym():
        return member
    parent = PurePosixPath(name).parent
    return members[str(PurePosixPath(*_normal((parent / member.linkname).parts)))]


def _normal(parts: tuple[str, ...]) -> list[str]:
    done: list[str] = []
    for part in parts:
        if part == ".." and done:
            done.pop()
        elif part not in ("..", "."):
            done.append(part)
    return done
