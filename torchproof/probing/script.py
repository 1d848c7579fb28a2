"""Probe scripts: what each says of itself in its header, read without importing it.

A header is a TOML block in comments, like the inline metadata of PEP 723:

    # /// probe
    # summary = "The gradient of two ranks is the gradient of one"
    # gpus = 2
    # timeout = 180
    # [variant.gloo]
    # gpus = 0
    # args = ["--backend", "gloo"]
    # ///

Files whose names begin with an underscore are shared code, not probes.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torchproof.errors import InputError, did_you_mean

BLOCK = re.compile(r"^# /// probe[ \t]*\n(?P<body>(?:#(?: .*)?\n)*?)# ///[ \t]*$", re.MULTILINE)

_PACKAGE = Path(__file__).resolve().parents[1]
PROBES = next(
    folder for folder in (_PACKAGE / "probes", _PACKAGE.parent / "probes") if folder.is_dir()
)
"""The probe scripts that come with torchproof: of an installation, or of this checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One thing to prove of a cell: a script, its arguments, and what it needs.

    `gpus` are needed to pass; with fewer than `min_gpus` the script is not even started, and
    between the two it proves what it can and the result is a skip. `timeout` is seconds.
    """

    name: str
    path: Path
    summary: str
    args: tuple[str, ...] = ()
    gpus: int = 0
    min_gpus: int = 0
    all_gpus: bool = False
    """Takes every GPU of the host."""
    timeout: float = 120.0
    required: bool = True
    default: bool = True
    """Runs unless asked otherwise; False: only where matrix.yaml names it."""
    random_uid: bool = False
    """Runs as a uid without a passwd entry, in group 0 (containers only)."""
    shm_mib: int | None = None
    """Size of /dev/shm (containers only); None: what the run asks for."""
    expect: str = ""
    """A code with which the script has to fail: the probe itself is on trial (containers only)."""

    @property
    def container_only(self) -> bool:
        """Whether the probe says nothing outside a container."""
        return self.random_uid or self.shm_mib is not None


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    args: list[str] = []
    gpus: int = Field(default=0, ge=0)
    min_gpus: int | None = Field(default=None, ge=0)
    all_gpus: bool = False
    timeout: float = Field(default=120, gt=0, le=3600)
    required: bool = True
    default: bool = True
    random_uid: bool = False
    shm_mib: int | None = Field(default=None, gt=0)
    expect: str = ""


class _Variant(_Settings):
    summary: str | None = None


class _Header(_Settings):
    summary: str = Field(min_length=1)
    variant: dict[str, _Variant] = {}


def read_probes(path: Path) -> tuple[Probe, ...]:
    """Read the header of one script: the probe and its variants (`ddp_step`, `ddp_step_gloo`).

    Raises InputError (file:line) when the header is missing or wrong.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    match = BLOCK.search(text)
    if match is None:
        raise InputError(
            "a probe script without a `# /// probe` header",
            where=str(path),
            fix="add the header (docs/probes.md), or begin the file's name with an underscore",
        )
    line = text[: match.start()].count("\n") + 1
    body = re.sub(r"^# ?", "", match["body"], flags=re.MULTILINE)
    try:
        header = _Header.model_validate(tomllib.loads(body))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the probe header is no TOML: {error}", where=f"{path}:{line}") from None
    except ValidationError as error:
        raise InputError(_explain(error), where=f"{path}:{line}") from None
    common = header.model_dump(exclude={"variant"}, exclude_unset=True)
    probes = [_probe(path.stem, path, common)]
    for name, variant in header.variant.items():
        settings = common | variant.model_dump(exclude_unset=True)
        probes.append(_probe(f"{path.stem}_{name}", path, settings))
    return tuple(probes)


def load_probes(folder: Path = PROBES) -> tuple[Probe, ...]:
    """Read every probe script of a folder, sorted by name. Raises InputError if there is none."""
    scripts = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    if not scripts:
        raise InputError("no probe scripts here", where=str(folder))
    return tuple(probe for path in scripts for probe in read_probes(path))


def select_probes(
    probes: Sequence[Probe],
    *,
    required: Iterable[str] | None = None,
    optional: Iterable[str] = (),
    rest: bool = True,
    only: str | None = None,
) -> tuple[tuple[Probe, bool], ...]:
    """Choose what to run, each with whether the verdict requires it.

    `required`, `optional` and `rest` (whether probes that neither names run too) come from
    matrix.yaml (`required` None: each header decides); `only` is a list of names separated by
    commas. Raises InputError with a "did you mean" for an unknown name.
    """
    known = [probe.name for probe in probes]
    wanted = [name.strip() for name in only.split(",")] if only else None
    optional = tuple(optional)
    must = None if required is None else tuple(required)
    for name in (*(must or ()), *optional, *(wanted or ())):
        if name not in known:
            raise InputError(f"no probe is called {name!r}", fix=did_you_mean(name, known))
    chosen: list[tuple[Probe, bool]] = []
    for probe in probes:
        if wanted is not None and probe.name not in wanted:
            continue
        needed = probe.required and probe.default if must is None else probe.name in must
        if needed and probe.name not in optional:
            chosen.append((probe, True))
        elif (rest and probe.default) or probe.name in optional or wanted is not None:
            chosen.append((probe, False))
    return tuple(chosen)


def suite_hash(folder: Path = PROBES) -> str:
    """`sha256:…` of all probe scripts and what they share: results of another suite are void."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return "sha256:" + digest.hexdigest()


def _probe(name: str, path: Path, settings: dict[str, Any]) -> Probe:
    gpus, least = settings.get("gpus", 0), settings.get("min_gpus")
    more = {
        "args": tuple(settings.get("args", ())),
        "min_gpus": gpus if least is None else min(least, gpus),
    }
    return Probe(name=name, path=path, **settings | more)


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = [*_Header.model_fields]
        return f"the probe header has an unknown key {key!r}; {did_you_mean(key, known)}"
    return f"the probe header's {key!r}: {first['msg']}"
