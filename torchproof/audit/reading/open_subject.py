"""What is audited → facts. The edge of the audit: engines, layouts, archives, directories."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchproof.audit.facts import (
    NOTHING,
    Detail,
    FileEntry,
    ImageFacts,
    ImageLayerFacts,
    RunConfig,
    Subject,
)
from torchproof.audit.reading.directory import outside, read_file, walk
from torchproof.audit.reading.layer_scan import LayerScan, merge, scan_directory, scan_tar
from torchproof.audit.reading.scan_cache import FactCache
from torchproof.errors import CellError, HostError, InputError
from torchproof.image.open_image import from_layout, from_registry
from torchproof.image.saved_archive import from_saved
from torchproof.image.stored_image import Image, pick_platform
from torchproof.registry import Reference, Registry

if TYPE_CHECKING:
    from torchproof.image.engine_image import EngineImages

Scan = Callable[[], LayerScan]


def open_directory(root: Path) -> ImageFacts:
    """Take the facts of an unpacked root or, if it holds `pyvenv.cfg`, of an environment.

    An environment is at its own path; what it needs from outside is the machine's. Raises
    InputError if there is no such directory.
    """
    if not root.is_dir():
        raise InputError(f"{root} is not a directory", fix="name an image or a directory")
    root = root.resolve()
    environment = (root / "pyvenv.cfg").is_file()
    mount = str(root) if environment else "/"

    @cache
    def detail(entry: FileEntry) -> Detail:
        inside = entry.path.startswith(mount.rstrip("/") + "/")
        below = entry.path[len(mount) :].lstrip("/")
        return read_file(root / below if inside else Path(entry.path), entry)

    return ImageFacts(
        name=str(root),
        subject=Subject.ENVIRONMENT if environment else Subject.ROOT,
        files={entry.path: entry for entry in walk(root, mount)},
        detail=detail,
        outside=outside if environment else None,
    )


def open_anything(name: str, *, cache: FactCache | None = None) -> ImageFacts:
    """Take the facts of whatever a user names, by what is there.

    A directory is an OCI layout, a root or an environment; a file is what `docker save` wrote;
    anything else is an image of the engine, or else of the registry that its name says. Raises
    InputError if nothing of that name is found, CellError if what is found is not an image.
    """
    place = Path(name)
    if (place / "oci-layout").is_file():
        return open_layout(place, cache=cache)
    if place.is_dir():
        return open_directory(place)
    if place.is_file():
        return open_archive(place, cache=cache)
    if name.startswith((".", "/", "~")):
        raise InputError(f"there is no {name}", fix="name an image or a directory that is there")
    return open_image(name, cache=cache)


def open_layout(layout: Path, digest: str = "", *, cache: FactCache | None = None) -> ImageFacts:
    """Take the facts of an image of an OCI layout: of its only one, or of a manifest by digest."""
    if not digest:
        try:
            index = json.loads((layout / "index.json").read_bytes())
            digest = pick_platform(index) or ""
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise CellError(f"not an OCI layout: {error!r}", where=str(layout)) from error
    if not digest:
        raise CellError("the layout holds no image for linux/amd64", where=str(layout))
    return _from_image(from_layout(layout, digest), str(layout), cache)


def open_archive(archive: Path, *, cache: FactCache | None = None) -> ImageFacts:
    """Take the facts of a file that `docker save` wrote. Raises CellError if it is not one."""
    try:
        image = from_saved(archive, str(archive))
    except (HostError, OSError, ValueError, tarfile.TarError) as error:
        raise CellError(
            "this file is not an image: `docker save` writes one",
            where=str(archive),
            fix="name an image, an OCI layout, a directory, or a file of `docker save`",
        ) from error
    return _from_image(image, str(archive), cache)


def open_image(name: str, *, cache: FactCache | None = None) -> ImageFacts:
    """Take the facts of an image of the engine; if it has none of that name, of a registry."""
    # Docker's client takes long to import, and layouts and archives are read without it.
    from torchproof.image.engine_image import connect  # noqa: PLC0415

    problem = ""
    try:
        with connect() as engine:
            found = engine.inspect(name)
            if found is not None:
                return _from_engine(engine, found, name, cache)
            problem = "the engine has no such image"
    except HostError as error:
        problem = error.message
    try:
        reference = Reference.familiar(name)
    except InputError as error:
        raise InputError(
            f"{name!r} is neither a directory nor an image: {problem}",
            fix="name a directory, an image of the engine, or REGISTRY/REPOSITORY:TAG",
        ) from error
    try:
        with Registry(reference.registry) as registry:
            image = from_registry(registry, reference.repository, reference.target)
            if image is not None:
                return _from_image(image, name, cache)
    except HostError as error:
        raise type(error)(
            f"{name!r}: {problem}, and {error.message}",
            fix=error.fix or "name a directory, or an image that the engine or a registry has",
        ) from error
    raise InputError(
        f"{name!r}: {problem}, and {reference.registry} has none", fix="check name and tag"
    )


def _from_engine(
    engine: EngineImages, attributes: dict[str, Any], name: str, cache: FactCache | None
) -> ImageFacts:
    """Read layers where the engine keeps them, if this user may; else as the engine saves them."""
    config = run_config(
        attributes.get("Config") or {},
        f"{attributes.get('Os', 'linux')}/{attributes.get('Architecture', 'amd64')}",
        str(attributes["Id"]),
    )
    diff_ids = list((attributes.get("RootFS") or {}).get("Layers") or ())
    folders = _folders(attributes, len(diff_ids))
    steps = _steps(reversed(engine.history(attributes["Id"])), "CreatedBy", "Size")
    if folders is not None:
        scans = [
            (diff_id, 0, _directory_scan(folder))
            for diff_id, folder in zip(diff_ids, folders, strict=True)
        ]
        return _facts(name, config, scans, steps, cache)
    with engine.saved(str(attributes["Id"])) as image:
        return _from_image(image, name, cache)


def _folders(attributes: dict[str, Any], count: int) -> list[Path] | None:
    """Return where overlay2 keeps the layers, bottom first; None if they cannot be read here."""
    driver = attributes.get("GraphDriver") or {}
    data = driver.get("Data") or {}
    if not str(driver.get("Name", "")).startswith("overlay") or "UpperDir" not in data:
        return None
    lower = [part for part in str(data.get("LowerDir", "")).split(":") if part]
    folders = [Path(part) for part in (*reversed(lower), data["UpperDir"])]
    if len(folders) != count or os.geteuid() != 0:
        return None
    return folders if all(folder.is_dir() for folder in folders) else None


def _directory_scan(folder: Path) -> Scan:
    return lambda: scan_directory(folder)


def _from_image(image: Image, name: str, cache: FactCache | None) -> ImageFacts:
    try:
        described = json.loads(image.config)
        config = run_config(
            described.get("config") or {},
            f"{described.get('os', 'linux')}/{described.get('architecture', 'amd64')}",
            image.config_digest,
        )
        steps = _steps(described.get("history") or (), "created_by", "empty_layer")
    except (ValueError, AttributeError, TypeError) as error:
        raise CellError(f"its configuration cannot be read: {error!r}", where=name) from error

    def scan(number: int) -> Scan:
        layer = image.layers[number]
        return lambda: scan_tar(layer.open(), f"{name}, layer {number + 1} ({layer.diff_id})")

    scans = [
        (layer.diff_id, layer.descriptor.size if layer.descriptor else 0, scan(number))
        for number, layer in enumerate(image.layers)
    ]
    return _facts(name, config, scans, steps, cache)


def _facts(
    name: str,
    config: RunConfig,
    scans: Sequence[tuple[str, int, Scan]],
    steps: Sequence[str],
    cache: FactCache | None,
) -> ImageFacts:
    cache = cache or FactCache()
    read = [cache.get(diff_id, scan) for diff_id, _, scan in scans]
    merged = merge(read)
    named = steps if len(steps) == len(scans) else [""] * len(scans)
    return ImageFacts(
        name=name,
        subject=Subject.IMAGE,
        files=merged.files,
        detail=lambda entry: merged.details.get(entry.path, NOTHING),
        config=config,
        layers=tuple(
            ImageLayerFacts(digest=diff_id, size=done.size, packed=packed, created_by=step)
            for (diff_id, packed, _), done, step in zip(scans, read, named, strict=True)
        ),
        problems=merged.problems,
    )


def _steps(history: Any, created_by: str, empty: str) -> list[str]:
    """Return the steps of a history that made a layer, bottom first."""
    steps = []
    for step in history:
        made = step.get(empty)
        if made if empty == "Size" else not made:
            steps.append(str(step.get(created_by) or ""))
    return steps


def run_config(config: dict[str, Any], platform: str, digest: str) -> RunConfig:
    """Read the part of an image configuration that rules look at."""
    pairs = (str(item).partition("=") for item in config.get("Env") or ())
    return RunConfig(
        env={name: value for name, _, value in pairs},
        user=str(config.get("User") or ""),
        workdir=str(config.get("WorkingDir") or "/"),
        entrypoint=_words(config.get("Entrypoint")),
        cmd=_words(config.get("Cmd")),
        labels={str(key): str(value) for key, value in (config.get("Labels") or {}).items()},
        platform=platform,
        digest=digest,
    )


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return ("/bin/sh", "-c", value)
    return tuple(str(word) for word in value or ())
