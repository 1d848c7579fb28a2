"""What a Python process of the image maps: torch's libraries, other extensions, programs. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.model.loader import Loaded, Loader, Process
from torchproof.audit.reading.elf_facts import Symbol

EXTENSION: Final = re.compile(r"\.(cpython-\d+\w*|abi3|pypy\d+)[\w-]*\.so$")
SITE: Final = re.compile(
    r"^(?P<prefix>.*)/lib(64)?/(?P<python>python3(\.\d+)?t?)/(site|dist)-packages"
)
PLUGIN: Final = re.compile(r"^libnccl-(net|tuner|profiler)[\w-]*\.so")
"""Loaded by NCCL itself, so that nothing in the image names them."""


@dataclass(frozen=True, slots=True)
class Root:
    """One file that starts a link: with its process, and how sure it is that it is loaded."""

    path: str
    process: Process
    certain: bool
    """True for what an import loads; False for programs and for what nothing is known to load."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Undefined symbols of one object, with the library that ought to define them ("" unknown)."""

    user: Loaded
    provider: str
    symbols: tuple[Symbol, ...]


def interpreter(facts: ImageFacts, site: str) -> str | None:
    """Return the Python program that imports from a site directory, links followed."""
    match = SITE.match(site)
    if not match:
        return None
    for name in (match["python"], "python3", "python"):
        found = facts.resolve(f"{match['prefix']}/bin/{name}")
        if found and facts.read(found).elf:
            return found
    return None


def torch_process(facts: ImageFacts, loader: Loader) -> Process | None:
    """Return what `import torch` maps; None without torch.

    torch itself opens `nvidia/*/lib` where the loader finds nothing (`_preload_cuda_deps` in
    torch/__init__.py), so libraries there stand in for what is missing.
    """
    if facts.torch is None:
        return None
    site = facts.torch.site
    start = next((path for path in extensions(facts, f"{site}/torch") if "/_C." in path), None)
    if start is None:
        return None
    preloaded = Process()
    for path, elf in facts.elves.items():
        if path.startswith((f"{site}/nvidia/", f"{site}/cusparselt/")):
            preloaded.add(Loaded(path=path, elf=elf, via="torch"))
    return loader.load(start, interpreter(facts, site), preloaded)


def extensions(facts: ImageFacts, folder: str) -> Iterator[str]:
    """Yield the extension modules directly in a directory."""
    for name in facts.listdir(folder):
        if EXTENSION.search(name) and f"{folder}/{name}" in facts.elves:
            yield f"{folder}/{name}"


def roots(facts: ImageFacts, loader: Loader, torch: Process | None) -> Iterator[Root]:
    """Yield every link: torch's import, each extension and plug-in, then programs and the rest."""
    reached: set[str] = set()
    if torch is not None and facts.torch is not None:
        reached |= set(torch.objects)
        yield Root(f"{facts.torch.site}/torch", torch, True)
    later: list[str] = []
    for path in facts.elves:
        match = SITE.match(path)
        name = posixpath.basename(path)
        if path in reached:
            continue
        if not (match and EXTENSION.search(name)) and not PLUGIN.match(name):
            later.append(path)
            continue
        main = interpreter(facts, match.group(0)) if match else None
        process = loader.load(path, main, torch)
        reached |= set(process.objects)
        yield Root(path, process, True)
    for path in later:
        if path not in reached:
            yield Root(path, loader.load(path, None, torch), False)


def unresolved(process: Process) -> Iterator[Unresolved]:
    """Yield the strong symbols that nothing in a process defines, by object and provider.

    A symbol with a version must be defined by the very library that it names, if that has versions;
    without one, by any object. Names of the Python API are left to the interpreter.
    """
    scope: set[str] = set()
    for found in process.objects.values():
        scope |= found.elf.defined
    for user in process.objects.values():
        missing: dict[str, list[Symbol]] = {}
        for symbol in user.elf.undefined:
            if not symbol.weak and not _defined(symbol, process, scope):
                missing.setdefault(provider_of(symbol, process), []).append(symbol)
        for provider, symbols in missing.items():
            yield Unresolved(user, provider, tuple(symbols))


def _defined(symbol: Symbol, process: Process, scope: set[str]) -> bool:
    if symbol.name.startswith(("Py", "_Py")):
        return True
    if not symbol.version:
        return symbol.name in scope
    found = process.by_name.get(symbol.file)
    if found is None or not found.elf.version_defs:
        return symbol.name in scope
    return f"{symbol.name}@{symbol.version}" in scope


FAMILIES: Final[Mapping[str, str]] = {
    r"nccl[A-Z]": "libnccl.so",
    r"cudnn[A-Z]": "libcudnn",
    r"cublasLt": "libcublasLt.so",
    r"cublas": "libcublas.so",
    r"cusparseLt": "libcusparseLt.so",
    r"cusparse": "libcusparse.so",
    r"cusolver": "libcusolver",
    r"cufft": "libcufft",
    r"curand": "libcurand",
    r"(__)?nvJitLink": "libnvJitLink.so",
    r"nvrtc": "libnvrtc.so",
    r"nvshmem": "libnvshmem",
    r"cupti": "libcupti.so",
    r"cuFile": "libcufile.so",
    r"(__)?cuda[A-Z]": "libcudart.so",
    r"cu[A-Z]": "libcuda.so.1",
    r"nvml[A-Z]": "libnvidia-ml.so.1",
    r"_ZNK?S?t?\d*N?K?3c10|_Z\w{1,6}3c10|_ZNK?3c10": "libc10",
    r"_ZT?\w?NK?2at|_ZNK?5torch|_ZNK?6caffe2|aoti_": "libtorch",
}
"""Prefixes of symbols → start of the name of the library that defines them."""
_PATTERNS: Final = [(re.compile(pattern), name) for pattern, name in FAMILIES.items()]


def provider_of(symbol: Symbol, process: Process) -> str:
    """Return the library that a symbol belongs to: as it says, else by its family, else ""."""
    if symbol.file:
        return symbol.file
    for pattern, prefix in _PATTERNS:
        if pattern.match(symbol.name):
            names = sorted(name for name in process.by_name if name.startswith(prefix))
            return names[0] if names else prefix
    return ""
