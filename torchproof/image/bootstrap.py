"""The base of an image from the distribution's archive, for `bootstrap:`; needs no registry.

mmdebstrap makes a tar of the smallest system that carries the interpreter. The file's name is the
recipe, so that equal recipes are made once. Nothing of this machine's network goes into it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from filelock import FileLock

from torchproof._process import run_logged
from torchproof.errors import CellError, HostError, InputError
from torchproof.image.dockerfile import base_ref
from torchproof.model.lock import LockedBase
from torchproof.model.platforms import platform_of

EPOCH = 1_767_225_600
"""Newest time stamp in a base (2026-01-01): with it, equal packages give equal bytes."""
MACHINE_FILES = ("etc/resolv.conf", "etc/hostname", "etc/machine-id", "var/lib/dbus/machine-id")
"""What mmdebstrap copies from, or makes up for, the machine that runs it."""
_UNKNOWN = re.compile(r"E: Unable to locate package (\S+)|Package '?(\S+?)'? has no installation")
_NO_NETWORK = re.compile(r"Could not (resolve|connect)|Failed to fetch|Temporary failure|timed out")


def ensure_base(base: LockedBase, platform: str, *, cache: Path, log: Path) -> Path:
    """Return the tar of a `bootstrap:` base, made now if it is not in the cache.

    Raises InputError for an invalid base, CellError for a package that the distribution does
    not have, HostError if mmdebstrap or the archive is missing.
    """
    match = re.fullmatch(r"(debian|ubuntu)/([a-z]+)", base.bootstrap or "")
    if match is None:
        raise InputError(
            f"{base.bootstrap!r} is not a valid base",
            fix="write `bootstrap: debian/bookworm`, or `image: name@sha256:…`",
        )
    target = cache / "bases" / f"{base_ref(base, platform).rpartition(':')[2]}.tar"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _bootstrap(match[2], base, platform, target, log)
    return target


def _bootstrap(suite: str, base: LockedBase, platform: str, target: Path, log: Path) -> None:
    program = shutil.which("mmdebstrap")
    if program is None:
        raise HostError(
            f"the base {base.bootstrap} cannot be made: mmdebstrap is not installed",
            fix="install mmdebstrap, or name an image: `image: name@sha256:…`",
        )
    part = target.with_suffix(".part.tar")
    forget = "rm -f " + " ".join(f'"$1/{name}"' for name in MACHINE_FILES)
    command = [
        *(program, "--variant=minbase", f"--architectures={platform_of(platform).debian}"),
        f"--include={','.join(base.packages)}",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        f"--customize-hook={forget}",
        '--customize-hook=rm -rf "$1"/var/log/* "$1"/var/cache/ldconfig/aux-cache',
        *(suite, str(part)),
    ]
    try:
        code, output = run_logged(
            command,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
            cwd=target.parent,
            log=log,
            title=f"mmdebstrap {suite} {' '.join(base.packages)}",
        )
        if code == 0:
            part.replace(target)
            return
    finally:
        part.unlink(missing_ok=True)
    raise _failure(base, output)


def _failure(base: LockedBase, output: str) -> CellError | HostError:
    lines = [line for line in output.splitlines() if line.startswith("E:")]
    reason = " · ".join(lines[:2]) or output.strip()[-200:]
    if unknown := _UNKNOWN.search(output):
        package = unknown[1] or unknown[2]
        return CellError(
            f"{base.bootstrap} has no package {package}", fix="take another base, or other options"
        )
    if "No space left" in output:
        return HostError(f"the disk is full: {base.bootstrap}", fix="free some space, run again")
    if _NO_NETWORK.search(output):
        return HostError(
            f"the archive of {base.bootstrap} does not answer: {reason}",
            fix="check the network, or name an image: `image: name@sha256:…`",
        )
    return HostError(f"the base {base.bootstrap} cannot be made: {reason}", fix="read the log")
