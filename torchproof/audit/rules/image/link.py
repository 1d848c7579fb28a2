"""Family `link`: every library resolved as the image's own loader would, before it is ever run."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from torchproof.audit.facts import ImageFacts, Subject
from torchproof.audit.model.loader import DRIVER_LIBRARIES, Loaded, Loader, Process, owners
from torchproof.audit.model.process import Root, Unresolved, roots, torch_process, unresolved
from torchproof.audit.rule import Rule
from torchproof.model.results import Finding

SHOWN: Final = 3
"""Names spelled out in a message; the rest are counted."""
CUDA_NAMES: Final = re.compile(r"^lib(cu|nv|nccl|torch|c10)")


def _listed(names: Iterable[str]) -> str:
    items = list(names)
    rest = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + rest


def links(facts: ImageFacts) -> tuple[Root, ...]:
    """Return every link of the image; ask for it by `facts.derived(links)`."""
    loader = Loader(facts)
    return tuple(roots(facts, loader, torch_process(facts, loader)))


def _expected(facts: ImageFacts, name: str) -> bool:
    """Tell whether a library must be among the facts: wheels alone have no system under them."""
    if name in DRIVER_LIBRARIES:
        return False
    return facts.subject is not Subject.WHEELS or bool(CUDA_NAMES.match(name))


def missing_libraries(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find NEEDED libraries that nothing provides."""
    reported: set[tuple[str, str]] = set()
    for root in facts.derived(links):
        for user, name in root.process.missing:
            if (user.path, name) in reported or not _expected(facts, name):
                continue
            reported.add((user.path, name))
            message = f"{posixpath.basename(user.path)} needs {name}, which the image does not have"
            if root.certain:
                yield rule.error(message, where=user.path)
            else:
                yield rule.note(f"{message}; it fails when something loads it", where=user.path)


def missing_symbols(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find undefined symbols that no library of the process defines."""
    reported: set[tuple[str, str]] = set()
    owner = facts.derived(owners)
    for root in facts.derived(links):
        absent = {name for _, name in root.process.missing}
        for gap in unresolved(root.process):
            key = (gap.user.path, gap.provider)
            if key in reported or _excused(gap, absent, root):
                continue
            reported.add(key)
            message = _symbol_message(gap, root.process, owner)
            if root.certain and gap.provider:
                yield rule.error(message, where=gap.user.path, fix=_symbol_fix(gap, rule))
            elif gap.provider or root.certain:
                yield rule.warning(message, where=gap.user.path, fix=_symbol_fix(gap, rule))


def _excused(gap: Unresolved, absent: set[str], root: Root) -> bool:
    """Excuse what a missing library explains, and plug-ins, whose host has their symbols."""
    if any(gap.provider and name.startswith(gap.provider) for name in (*absent, *DRIVER_LIBRARIES)):
        return True
    return not gap.provider and (bool(absent) or not root.certain)


def _symbol_message(gap: Unresolved, process: Process, owner: Mapping[str, str]) -> str:
    user = posixpath.basename(gap.user.path)
    names = _listed(symbol.name for symbol in gap.symbols)
    found = process.by_name.get(gap.provider)
    if found is None:
        where = f"no library that it loads defines ({gap.provider or 'owner unknown'})"
    else:
        who = f" ({owner[found.path]})" if found.path in owner else ""
        where = f"{found.path}{who} does not define"
    old = " The names carry std::string of the old C++ ABI." if old_abi(gap) else ""
    return f"{user} needs {names}, which {where}.{old}"


def old_abi(gap: Unresolved) -> bool:
    """Tell whether an extension was built with `_GLIBCXX_USE_CXX11_ABI=0` for a torch that was not.

    In mangled names the old `std::string` is `Ss`, the new one is in `std::__cxx11`.
    """
    return any(
        symbol.name.startswith("_Z") and "Ss" in symbol.name and "__cxx11" not in symbol.name
        for symbol in gap.symbols
    )


def _symbol_fix(gap: Unresolved, rule: Rule) -> str:
    if gap.provider.startswith(("libc10", "libtorch")):
        abi = "TRUE" if old_abi(gap) else "FALSE" if _new_abi(gap) else ""
        wanted = f"its cxx11abi{abi} wheel" if abi else "a wheel of it"
        return f"install {wanted} built for the torch of this image, or build it against that torch"
    if gap.provider.startswith("libnccl"):
        return (
            "install the NCCL that torch pins or a newer one; `python build.py compat --torch "
            "VERSION --nccl` lists those that link"
        )
    return rule.remedy


def _new_abi(gap: Unresolved) -> bool:
    return any("__cxx11" in symbol.name for symbol in gap.symbols)


def missing_versions(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find symbol versions that the library that is found does not have."""
    reported: set[tuple[str, str]] = set()
    for root in facts.derived(links):
        for user in root.process.objects.values():
            for name, versions in user.elf.version_needs.items():
                found = root.process.by_name.get(name)
                if found is None or (user.path, name) in reported or not found.elf.version_defs:
                    continue
                lacking = sorted(versions - found.elf.version_defs, key=_natural)
                if lacking:
                    reported.add((user.path, name))
                    yield _version_finding(rule, user, found, lacking)


def _version_finding(rule: Rule, user: Loaded, found: Loaded, lacking: list[str]) -> Finding:
    family = lacking[-1].rpartition("_")[0]
    same = [version for version in found.elf.version_defs if version.startswith(family + "_")]
    newest = max(same, key=_natural, default="")
    has = f"goes up to {newest}" if newest else "has none of that family"
    fix = rule.remedy
    if posixpath.basename(found.path).startswith(("libc.", "libc-", "libm.", "libm-")):
        needs = lacking[-1].removeprefix("GLIBC_")
        fix = f"use a base with glibc {needs} or newer, or a wheel built for an older one"
    return rule.error(
        f"{posixpath.basename(user.path)} needs {_listed(lacking)}; {found.path} {has}",
        where=user.path,
        fix=fix,
    )


def _natural(version: str) -> tuple[tuple[int, str], ...]:
    return tuple(
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[._]", version)
    )


def broken_files(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find libraries that are empty or corrupt."""
    for entry in facts.regular(lambda name: ".so" in name):
        broken = facts.detail(entry).broken
        if broken:
            yield rule.error(f"{posixpath.basename(entry.path)} {broken}", where=entry.path)


def outranked(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find libraries of LD_LIBRARY_PATH that win over the ones a wheel brings for itself."""
    loader = Loader(facts)
    if not loader.library_path:
        return
    reported: set[str] = set()
    value = facts.env.get("LD_LIBRARY_PATH", "")
    without = Loader(facts, library_path=())
    for path, elf in facts.elves.items():
        names = [*elf.needed, *sorted(elf.mentions)]
        asking = Loaded(path=path, elf=elf)
        for name in names:
            if name in reported or not elf.runpath:
                continue
            mine, theirs = without.find(name, asking), loader.find(name, asking)
            if mine and theirs and mine.path != theirs.path and mine.via == "RUNPATH":
                reported.add(name)
                yield rule.error(
                    f"ENV LD_LIBRARY_PATH={value} contains {name} ({theirs.path}), which outranks "
                    f"{mine.path}: {posixpath.basename(path)} names its own by RUNPATH, which is "
                    "searched later",
                    where=theirs.path,
                )


def split_cudnn(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find cuDNN sub-libraries that would be opened from another cuDNN, or from nowhere."""
    loader = Loader(facts)
    reported: set[str] = set()
    owner = facts.derived(owners)
    for path, elf in facts.elves.items():
        if not posixpath.basename(path).startswith("libcudnn"):
            continue
        folder = posixpath.dirname(path)
        for name in sorted(elf.mentions):
            if name in reported or facts.lookup(f"{folder}/{name}"):
                continue
            reported.add(name)
            who = owner.get(path, folder)
            found = loader.find(name, Loaded(path=path, elf=elf))
            if found and posixpath.dirname(found.path) != folder:
                yield rule.error(
                    f"{posixpath.basename(path)} of {who} opens {name}, which it does not contain; "
                    f"{found.path} of another cuDNN fills in: convolutions fail with "
                    "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
                    where=path,
                )
            else:
                yield rule.note(
                    f"{posixpath.basename(path)} of {who} can open {name}, which the image does "
                    "not have; a newer cuDNN of the host or base must not fill in",
                    where=path,
                )


def rdma_libraries(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find an image that is to have InfiniBand and lacks what NCCL opens for it."""
    asked = (facts.lock is not None and facts.lock.rdma) or (
        facts.cell is not None and facts.cell.rdma
    )
    nccl = next((path for path in facts.elves if "/libnccl.so" in path), None)
    if nccl is None or facts.subject is Subject.WHEELS:
        return
    loader = Loader(facts)
    asking = Loaded(path=nccl, elf=facts.elves[nccl])
    if loader.find("libibverbs.so.1", asking) is None:
        message = (
            "the image cannot use InfiniBand: libibverbs.so.1 is absent, so "
            f"{posixpath.basename(nccl)} falls back to TCP without an error"
        )
        yield (rule.error if asked else rule.note)(message, where=nccl)
        return
    drivers = any("/libibverbs/" in path and ".so" in path for path in facts.elves)
    if not drivers:
        message = "libibverbs.so.1 is there, but no provider driver (libibverbs/*-rdmav*.so)"
        yield (rule.error if asked else rule.note)(message, where=nccl)


RULES: Final = (
    Rule(
        id="link.broken",
        protects="A library that is empty or cut short fails at import, or at its first use.",
        remedy="install the package that owns the file again; check that the disk was not full",
        source="System V gABI, chapter 4",
        evaluate=broken_files,
    ),
    Rule(
        id="link.library",
        protects='`import` fails with "cannot open shared object file".',
        remedy="install the package that has the library, or remove the one that needs it",
        source="ld.so(8)",
        evaluate=missing_libraries,
    ),
    Rule(
        id="link.symbol",
        protects='`import torch` or an extension fails with "undefined symbol".',
        remedy="install versions of both that were built for one another",
        source="pytorch/pytorch#119932, NVIDIA/nccl#1784, Dao-AILab/flash-attention wheels",
        evaluate=missing_symbols,
    ),
    Rule(
        id="link.version",
        protects='A library fails to load: "version `GLIBCXX_3.4.32\' not found".',
        remedy="use a base (or environment) whose library is as new as the one it was built with",
        source="pytorch/pytorch#123649; LSB, symbol versioning",
        evaluate=missing_versions,
    ),
    Rule(
        id="link.outranked",
        protects="A library of the base or the cluster is loaded in place of the wheel's.",
        remedy="unset LD_LIBRARY_PATH in the image, or remove the directory from it",
        source="ld.so(8); pytorch/pytorch#80637, replicate/cog#815",
        evaluate=outranked,
    ),
    Rule(
        id="link.cudnn",
        protects="cuDNN mixes its own sub-libraries with those of another version.",
        remedy="use a base without cuDNN, and the cuDNN wheel that torch pins",
        source="pytorch/pytorch#185512, #188892",
        evaluate=split_cudnn,
    ),
    Rule(
        id="link.rdma",
        protects="NCCL falls back to TCP without an error, many times slower.",
        remedy="set `rdma: true`, or install libibverbs1, ibverbs-providers and librdmacm1",
        source="sgl-project/sglang#1427",
        evaluate=rdma_libraries,
    ),
)
