"""Family `user`: can the image's user (and any user of OpenShift or --user) live in it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import cache
from typing import Final

from packaging.version import InvalidVersion, Version

from torchproof.audit.facts import FileKind, ImageFacts
from torchproof.audit.model.programs import RANDOM, User, closed_to, image_user
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding
from torchproof.upstream.data_files import read_data

CACHES: Final = (
    *("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME"),
    *("TORCH_EXTENSIONS_DIR", "HF_HOME", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"),
)
ENOUGH: Final = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""With both set, torch.compile needs no HOME."""


@cache
def user_name_needed_before() -> Version:
    """Return the first torch that does without a user name."""
    return Version(read_data("torch")["user_name_needed_before"]["version"])


def writable(facts: ImageFacts, path: str, user: User) -> bool:
    """Tell whether a user can write in a folder, or make it where it is missing."""
    if closed_to(facts, path, user) is not None:
        return False
    entry = facts.lookup(path)
    if entry is None and path == "/":
        return user.uid == 0
    if entry is not None:
        return entry.kind is FileKind.DIRECTORY and user.may(entry, 2)
    return writable(facts, posixpath.dirname(path), user)


def known_user(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a USER that the image does not have."""
    if facts.config is not None and facts.files and image_user(facts) is None:
        yield rule.error(
            f"USER {facts.config.user} is not in /etc/passwd: the container does not start",
            where="/etc/passwd",
        )


def homes(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a HOME that is missing, or that its user cannot write."""
    if facts.config is None or facts.torch is None:
        return
    own = image_user(facts)
    cached = all(facts.env.get(name) for name in ENOUGH)
    home = facts.env.get("HOME", "")
    if own is not None and own.uid != 0:
        mine = home or own.home or "/"
        if not writable(facts, mine, own) and not cached:
            yield rule.error(
                f"user {own.name or own.uid} cannot write its HOME {mine}: Triton, Inductor and "
                "the hub keep their caches there",
                where=mine,
            )
            return
    anywhere = home or "/"
    if not writable(facts, anywhere, RANDOM) and not cached:
        yield rule.warning(
            f"HOME={anywhere} is not writable for another user than the image's own (--user, "
            "OpenShift): torch.compile fails with PermissionError",
            where=anywhere,
        )


def caches(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find cache folders that the image's user cannot write."""
    own = image_user(facts) if facts.config else None
    if own is None or own.uid == 0:
        return
    for name in CACHES:
        path = facts.env.get(name, "")
        if path.startswith("/") and not writable(facts, path, own):
            yield rule.error(
                f"ENV {name}={path}: user {own.name or own.uid} cannot write there", where=path
            )


def name_needed(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a torch that asks for a user name where a foreign user has none."""
    if facts.config is None or facts.torch is None:
        return
    if facts.env.get("USER") or facts.env.get("LOGNAME"):
        return
    try:
        version = Version(facts.torch.version)
    except InvalidVersion:
        return
    if version < user_name_needed_before():
        yield rule.warning(
            f"torch {facts.torch.version} asks for the user's name, and no USER is set: it fails "
            "for users without a line in /etc/passwd",
            where="/etc/passwd",
        )


def root(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Note that the image runs as root."""
    own = image_user(facts) if facts.config and facts.torch else None
    if own is not None and own.uid == 0:
        yield rule.note("the image runs as root")


RULES: Final = rules_of(
    "user",
    (
        "unknown",
        known_user,
        '"unable to find user" at start.',
        "add the user (useradd), or name it by number",
        "OCI image specification, config.User",
    ),
    (
        "home",
        homes,
        "PermissionError '/.triton' or '/root/.cache' at the first compiled function.",
        "set HOME to a folder of group 0 with mode 775 (or TRITON_CACHE_DIR and "
        "TORCHINDUCTOR_CACHE_DIR to one open to all)",
        "foundation-model-stack/fms-hf-tuning#367; OpenShift image guidelines",
    ),
    (
        "cache",
        caches,
        "PermissionError where the cache was meant to help.",
        "give the folder to the user, or name another one",
        "foundation-model-stack/fms-hf-tuning#367",
    ),
    (
        "name",
        name_needed,
        '"KeyError: getpwuid(): uid not found" at import.',
        "set ENV USER (any name), or use torch 2.13 or newer",
        "pytorch/pytorch#140765, vllm-project/vllm#46734",
    ),
    (
        "root",
        root,
        "Clusters that forbid root cannot run the image.",
        "add a user and set USER",
        "Kubernetes, Pod Security Standards",
    ),
)
