"""Family `duplicates`: one file or one library that comes from two places."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from torchproof.audit.facts import ImageFacts, Subject
from torchproof.audit.model.distributions import Distribution
from torchproof.audit.model.loader import owners
from torchproof.audit.model.process import SITE
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

MAJOR: Final = re.compile(r"^(nvidia-[\w-]+?)-cu(\d+)$")
WATCHED: Final = ("libnccl.so", "libcudnn.so", "libcublas.so", "libcudart.so")
"""Libraries of which a second copy means a second NCCL, cuDNN or CUDA."""
VARIABLES: Final = {
    "NCCL_VERSION": "nccl",
    "NV_LIBNCCL_PACKAGE_VERSION": "nccl",
    "NV_CUDNN_VERSION": "cudnn",
    "CUDNN_VERSION": "cudnn",
}
"""What the images of NVIDIA say of themselves → the wheel that torch uses instead."""


def two_owners(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find files that two distributions record with different content."""
    recorded: dict[str, list[tuple[Distribution, str]]] = defaultdict(list)
    for dist in facts.distributions:
        for file in dist.files:
            if ".dist-info/" not in file.path and "/__pycache__/" not in file.path:
                recorded[file.path].append((dist, file.hash))
    pairs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, claims in recorded.items():
        names = tuple(sorted({f"{dist.name} {dist.version}" for dist, _ in claims}))
        same = len({stated for _, stated in claims}) == 1 and claims[0][1]
        if len(names) > 1 and not same:
            pairs[names].append(path)
    for names, paths in pairs.items():
        code = [path for path in paths if ".so" in posixpath.basename(path)]
        shown = posixpath.basename((code or paths)[0])
        more = f" and {len(paths) - 1} more files belong" if len(paths) > 1 else " belongs"
        report = rule.error if code else rule.warning
        yield report(
            f"{shown}{more} to both {' and '.join(names)}: the one installed last won"
            + _pulled_by(facts, names),
            where=(code or paths)[0],
        )


def _pulled_by(facts: ImageFacts, names: tuple[str, ...]) -> str:
    wanted = {name.split()[0] for name in names}
    pulled = sorted(
        f"{dist.name} asks for {name}"
        for dist in facts.distributions
        for name in wanted
        if any(re.match(rf"{re.escape(name)}\b(?!-)", line) for line in dist.requires)
    )
    return f" ({'; '.join(pulled)})" if pulled else ""


def changed_files(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find installed libraries that are not as large as their own RECORD says, or are gone."""
    for dist in facts.distributions:
        for file in dist.files:
            if ".so" not in posixpath.basename(file.path) or file.size is None:
                continue
            found = facts.lookup(file.path)
            who = f"{dist.name} {dist.version}"
            if found is None:
                yield rule.warning(f"{who} lacks its file {file.path}", where=file.path)
            elif found.size != file.size:
                yield rule.error(
                    f"{posixpath.basename(file.path)} has {found.size} bytes, the RECORD of {who} "
                    f"says {file.size}: something wrote over it",
                    where=file.path,
                )


def cuda_majors(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find wheels of two CUDA majors in one environment."""
    found: dict[str, dict[str, list[Distribution]]] = defaultdict(lambda: defaultdict(list))
    for dist in facts.distributions:
        match = MAJOR.match(dist.name)
        if match:
            found[dist.site][match[2]].append(dist)
    for site, majors in found.items():
        if len(majors) < 2:
            continue
        by_size = sorted(majors.items(), key=lambda item: len(item[1]))
        fewer = by_size[0][1]
        listed = ", ".join(f"{dist.name} {dist.version}" for dist in fewer[:4])
        names = " and ".join(f"cu{major}" for major in sorted(majors))
        shared = sorted(
            {MAJOR.sub(r"\1", dist.name) for dist in fewer}
            & {MAJOR.sub(r"\1", dist.name) for dist in by_size[-1][1]}
        )
        both = f"; both majors of {', '.join(shared)} write the same files" if shared else ""
        yield rule.error(
            f"wheels of {names} are installed together: {listed}{both}"
            + _pulled_by(facts, tuple(dist.name for dist in fewer)),
            where=site,
        )


def second_library(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a second NCCL, cuDNN or CUDA beside the one that torch uses."""
    if facts.torch is None or facts.subject is Subject.WHEELS:
        return
    owner = facts.derived(owners)
    for prefix in WATCHED:
        copies = [path for path in facts.elves if posixpath.basename(path).startswith(prefix)]
        mine = [path for path in copies if path.startswith(facts.torch.site + "/")]
        others = [path for path in copies if not SITE.match(path)]
        if not mine or not others:
            continue
        wasted = sum(entry.size for path in others if (entry := facts.entry(path)))
        uses = owner.get(mine[0], mine[0])
        said = "".join(
            f", ENV {name}={value}"
            for name, value in facts.env.items()
            if name in VARIABLES and prefix.removeprefix("lib").startswith(VARIABLES[name])
        )
        yield rule.warning(
            f"the image has two {prefix.removesuffix('.so')}: {others[0]}{said}, and {mine[0]}; "
            f"torch uses the one of {uses}; {wasted / 1e6:.0f} MB are there for nothing",
            where=others[0],
        )


def stated_version(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find variables that state another NCCL or cuDNN than torch's wheels bring."""
    for name, value in facts.env.items():
        library = VARIABLES.get(name)
        if not library:
            continue
        for dist in facts.distributions:
            if not re.match(rf"nvidia-{library}-cu\d+$", dist.name):
                continue
            stated = re.split(r"[-+]", value)[0]
            if stated and not f"{dist.version}.".startswith(f"{stated}."):
                yield rule.warning(
                    f"ENV {name}={value}, but torch uses {dist.name} {dist.version}",
                    where=f"ENV {name}",
                )


RULES: Final = rules_of(
    "duplicates",
    (
        "owner",
        two_owners,
        "Two packages write one library; which one stays depends on the order of installation.",
        "uninstall both, install the one that torch requires",
        "PEP 376 (RECORD); pytorch/pytorch#119932",
    ),
    (
        "changed",
        changed_files,
        "A library is not the one that its package brought, so its version says nothing.",
        "install the package again as the last step; find what wrote over it",
        "PEP 376 (RECORD)",
    ),
    (
        "majors",
        cuda_majors,
        "Wheels of two CUDA majors overwrite one another's files, and both are loaded.",
        "keep the major that torch requires; find which package asks for the other",
        "pytorch/pytorch#119932; packages nvidia-*-cu12 and nvidia-*-cu13",
    ),
    (
        "library",
        second_library,
        "The base's NCCL, cuDNN or CUDA is beside torch's own: wasted bytes, or the wrong one.",
        "start from a base without CUDA: the wheels of torch bring all that it needs",
        "pytorch/pytorch#116696, #122571",
    ),
    (
        "stated",
        stated_version,
        "People and scripts read a version from ENV that torch does not use.",
        "start from a base without CUDA, or unset the variable",
        "pytorch/pytorch#119072",
    ),
)
