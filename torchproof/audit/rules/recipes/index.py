"""Family `index`: from which package index torch comes, and which CUDA that gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.find_installs import installs, with_files
from torchproof.audit.parsing.image_references import base_images, parse_reference
from torchproof.audit.parsing.install_request import Install
from torchproof.audit.parsing.torch_index import (
    backend,
    base_cuda,
    chooses_cuda,
    exact,
    is_pytorch,
    on_arm64,
    torch_installs,
    torch_of,
)
from torchproof.audit.parsing.words import expand, option_values
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.platforms import AMD64, ARM64
from torchproof.model.results import Finding
from torchproof.model.versions import cuda_version
from torchproof.upstream.facts import Facts, load_facts

_COMPUTED = re.compile(r"\$\(|`|\$\{\w+(//|/|%|#|:\d)")
"""Command substitution, or a parameter expansion that edits the text."""


def derived(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find index URLs that are computed from a CUDA version."""
    for install in facts.derived(installs):
        variables = install.use.variables if install.use else {}
        for url in (install.index_written, *install.extra):
            tail = url.rpartition("/whl")[2]
            if not is_pytorch(url) or "$" not in tail.replace("`", "$"):
                continue
            base = base_cuda(install)
            inherited = bool(base) and re.search(r"\$\{?CUDA_VERSION", tail)
            if not _COMPUTED.search(expand(tail, variables)) and not inherited:
                continue
            example = f": on this base whl/cu{base.replace('.', '')}" if base else ""
            yield rule.error(
                f"the wheel index is computed ({tail.lstrip('/')}){example}; PyTorch publishes "
                f"only some CUDA versions ({', '.join(_published(load_facts()))})",
                where=install.where,
            )


def _published(known: Facts) -> list[str]:
    names = {cuda for release in known.releases.values() for cuda in release.builds}
    return sorted(names, key=lambda name: Version(cuda_version(name)))


def unpublished(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a CUDA that upstream does not publish, at all or for the requested torch."""
    known = load_facts()
    for install in facts.derived(installs):
        whole = with_files(install, facts)
        torch = torch_of(whole.torch_family())
        version = exact(torch) if torch else None
        asked = {backend(url) for url in whole.indexes if "nightly" not in url}
        if version is not None and version.local:
            asked.add(version.local)
        for cuda in sorted(name for name in asked if re.fullmatch(r"cu\d+", name)):
            reason = _absent(known, cuda, version)
            if reason:
                yield rule.error(reason, where=install.where)


def _absent(known: Facts, cuda: str, version: Version | None) -> str:
    published = _published(known)
    if cuda not in published:
        return f"there are no PyTorch wheels for {cuda}; published: {', '.join(published)}"
    release = known.releases.get(version.public) if version else None
    if release is None or cuda in release.builds:
        return ""
    builds = sorted(release.builds, key=lambda name: Version(cuda_version(name)))
    older = [name for name in builds if Version(cuda_version(name)) <= Version(cuda_version(cuda))]
    nearest = older[-1] if older else builds[0]
    return (
        f"torch {release.version} is not published for {cuda}: it is for {', '.join(builds)} "
        f"(nearest: {nearest})"
    )


def default_moved(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find installs on a CUDA base that take whatever CUDA the default index gives."""
    known = load_facts()
    for install, family in torch_installs(facts):
        torch, base = torch_of(family), base_cuda(install)
        if torch is None or base is None or chooses_cuda(install, family) or install.index:
            continue
        platform = ARM64 if on_arm64(install) else AMD64
        version = exact(torch)
        if version is None and not torch.specifier and _brings_torch(install):
            continue
        if version is None:
            newest = known.releases[max(known.releases, key=Version)]
            yield rule.error(
                f"{torch} without an index on a CUDA {base} base: the default index moves from "
                f"CUDA to CUDA (torch {newest.version} there is {newest.default[platform]})",
                where=install.where,
            )
            continue
        release = known.releases.get(version.public)
        default = release.default.get(platform, "") if release else ""
        if not default.startswith("cu"):
            continue
        if cuda_version(default).split(".")[0] != base.split(".")[0]:
            yield rule.error(
                f"torch {version} from the default index is a CUDA {cuda_version(default)} build; "
                f"the base is CUDA {base}",
                where=install.where,
            )


def _brings_torch(install: Install) -> bool:
    """Tell whether the base has a torch that an install without a version leaves alone."""
    reference = parse_reference(install.use.base) if install.use else None
    known = reference is not None and reference.repository in base_images()["with_torch"]
    return known and not install.has("-U", "--upgrade", "--force-reinstall", "--reinstall")


def uv_extra(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find uv commands whose extra index hides the CUDA index that is named as the main one."""
    for install, family in torch_installs(facts):
        if install.tool != "uv" or not is_pytorch(install.index):
            continue
        others = [url for url in install.extra if not is_pytorch(url)]
        local = all((version := exact(item)) and version.local for item in family)
        if others and not local and not install.has("--index-strategy", "--torch-backend"):
            yield rule.error(
                f"uv asks an extra index before --index-url: {family[0].name} will come from "
                f"{others[0]}, not from {install.index}",
                where=install.where,
            )


def mixed(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find an unpinned torch that may come from either of two indexes."""
    for install, family in torch_installs(facts):
        words = install.use.command.words if install.use else ()
        best_match = "unsafe-best-match" in option_values(words, "--index-strategy")
        if install.tool == "uv" and not best_match:
            continue
        sides = {is_pytorch(url) for url in install.indexes}
        if not install.index and install.extra:
            sides.add(False)
        loose = [item for item in family if exact(item) is None]
        if sides == {True, False} and loose and not install.constraints:
            yield rule.error(
                f"{loose[0]} may come from the PyTorch index or from the other one: whichever has "
                "the higher version wins, and that is another CUDA",
                where=install.where,
            )


def arm64_cpu(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a torch for arm64 that the default index has as a CPU build only."""
    known = load_facts()
    for install, family in torch_installs(facts):
        torch = torch_of(family)
        version = exact(torch) if torch else None
        if version is None or not on_arm64(install) or chooses_cuda(install, family):
            continue
        if not install.index and _is_cpu(known, version.public):
            yield rule.error(_cpu_build(version.public), where=install.where)
    lock = facts.lock
    if lock is not None and lock.platform == ARM64 and lock.cuda.startswith("cu"):
        for wheel in lock.wheels:
            plain = wheel.name == "torch" and "+cu" not in wheel.version and wheel.index == "pypi"
            if plain and _is_cpu(known, Version(wheel.version).public):
                yield rule.error(_cpu_build(wheel.version), where=wheel.filename)


def _is_cpu(known: Facts, version: str) -> bool:
    release = known.release(version)
    return release is not None and release.default.get(ARM64) == "cpu"


def _cpu_build(version: str) -> str:
    return f"linux/arm64: torch {version} from the default index is a CPU build"


def companions(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find torchvision or torchaudio of another build than the torch beside it."""
    for install, family in torch_installs(facts):
        torch = torch_of(family)
        version = exact(torch) if torch else None
        if version is None or any(is_pytorch(url) for url in install.indexes):
            continue
        for item in family:
            other = exact(item)
            if item is torch or other is None or other.local == version.local:
                continue
            build = f"+{other.local}" if other.local else "the default index's CUDA build"
            mine = f"+{version.local}" if version.local else "the default index's build"
            yield rule.error(
                f"{item.name} {other.public} is {build}, torch {version.public} is {mine}: "
                "its operators will not register",
                where=install.where,
                fix="take torch, torchvision and torchaudio from one index, with one local tag",
            )


def same_file_two_hashes(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a lock that has one file name under two hashes."""
    if facts.lock is None:
        return
    seen: dict[str, tuple[str, str]] = {}
    for wheel in facts.lock.wheels:
        sha256, index = seen.setdefault(wheel.filename, (wheel.sha256, wheel.index))
        if sha256 != wheel.sha256:
            yield rule.error(
                f"{wheel.filename} has one hash from {index} and another from {wheel.index}",
                where=wheel.filename,
            )


RULES: Final = rules_of(
    "index",
    (
        "derived",
        derived,
        "A new base asks for an index that does not exist, and every build is red.",
        "write the index's name out (whl/cu128), and change it on purpose",
        "ai-dynamo/nixl#2214, #2249",
    ),
    (
        "unpublished",
        unpublished,
        "The resolver ends with a message about Python tags that hides the cause.",
        "use a CUDA that this release of torch is published for",
        "pytorch/test-infra, release matrix; ai-dynamo/nixl#2249",
    ),
    (
        "default-cuda",
        default_moved,
        "A green build whose torch is for another CUDA than its base and extensions.",
        "name the CUDA index: --index-url …/whl/cuXYZ, and pin torch",
        "LMCache/LMCache#3400",
    ),
    (
        "uv-extra",
        uv_extra,
        "The right CUDA index is named, and the default index's wheels are installed.",
        "name no extra index for torch; in pyproject.toml make the index explicit = true",
        "sensein/senselab#516; docs.astral.sh/uv, Package indexes",
    ),
    (
        "mixed",
        mixed,
        "Which index torch comes from changes with every release.",
        "give torch one index of its own with --index-url, and pin it with its local tag (+cu128)",
        "LMCache/LMCache#3400; pip documentation, --extra-index-url",
    ),
    (
        "arm64-cpu",
        arm64_cpu,
        "On GH200 and GB200 torch finds no GPU.",
        "take torch from the CUDA index for that platform",
        "pytorch/pytorch#160162",
    ),
    (
        "companions",
        companions,
        '"operator torchvision::nms does not exist" at import.',
        "take torch, torchvision and torchaudio from one index",
        "pytorch/vision#9249",
    ),
    (
        "two-hashes",
        same_file_two_hashes,
        "A file of one index is checked against the hash of another.",
        "lock each file with the hash of the index that it is fetched from",
        "astral-sh/uv#16784",
    ),
)
