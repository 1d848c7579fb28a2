"""Family `compile`: what torch.compile and Triton need at run time: a compiler and its headers."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from torchproof.audit.facts import ImageFacts, Subject
from torchproof.audit.model.programs import prefix_of, which
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

C_COMPILERS: Final = ("cc", "gcc", "clang")
CXX_COMPILERS: Final = ("c++", "g++", "clang++")
LIBC_HEADERS: Final = ("stdio.h", "stdlib.h", "stdint.h")


def _promised(facts: ImageFacts) -> bool:
    """Tell whether the cell promises torch.compile."""
    declared = [part.compile for part in (facts.lock, facts.cell) if part is not None]
    return any(declared)


def _applies(facts: ImageFacts) -> bool:
    if facts.subject is Subject.WHEELS or facts.torch is None:
        return False
    declared = facts.lock is not None or facts.cell is not None
    return _promised(facts) if declared else bool(facts.installed("triton"))


def _say(rule: Rule, facts: ImageFacts, message: str, where: str, fix: str = "") -> Finding:
    if facts.subject is Subject.ENVIRONMENT and not _promised(facts):
        return rule.note(message, where=where, fix=fix)
    make = rule.error if _promised(facts) else rule.warning
    return make(message, where=where, fix=fix)


def compilers(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find that no C compiler (Triton) or C++ compiler (Inductor) is on PATH."""
    if not _applies(facts):
        return
    c_names = [facts.env["CC"].split()[0]] if facts.env.get("CC", "").split() else C_COMPILERS
    cxx_names = [facts.env["CXX"].split()[0]] if facts.env.get("CXX", "").split() else CXX_COMPILERS
    if not any(which(facts, name) for name in c_names):
        yield _say(
            rule,
            facts,
            f"no C compiler in the image ({', '.join(c_names)}): torch.compile and Triton kernels "
            "will fail",
            "PATH",
        )
    if not any(which(facts, name) for name in cxx_names):
        yield _say(
            rule,
            facts,
            f"no C++ compiler here ({', '.join(cxx_names)}): torch.compile fails on the CPU",
            "PATH",
        )


def headers(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find that Python.h or the C library's headers are missing beside a compiler."""
    if not _applies(facts) or facts.torch is None:
        return
    folders = _include_folders(facts, facts.torch.site)
    if not any(facts.lookup(f"{folder}/Python.h") for folder in folders):
        yield _say(
            rule,
            facts,
            f"no Python.h in {folders[0]}: Triton cannot build its launcher",
            f"{folders[0]}/Python.h",
            fix="install python3-dev (for a Python of your own, its headers)",
        )
    if not any(which(facts, name) for name in C_COMPILERS):
        return
    lacking = [name for name in LIBC_HEADERS if not _libc_header(facts, name)]
    if lacking:
        yield _say(
            rule,
            facts,
            f"a compiler without the C library's headers ({', '.join(lacking)})",
            f"/usr/include/{lacking[0]}",
            fix="install libc6-dev",
        )


def _include_folders(facts: ImageFacts, site: str) -> list[str]:
    """Return where an environment's Python has its headers: by its own prefix or the base's."""
    version = re.search(r"/(python\d\.\d+t?)/", site)
    python = version[1] if version else "python3"
    prefix = prefix_of(site)
    prefixes = [prefix]
    home = re.search(r"^home\s*=\s*(\S+)", facts.text(f"{prefix}/pyvenv.cfg") or "", re.MULTILINE)
    real = facts.resolve(f"{prefix}/bin/python") or facts.resolve(f"{prefix}/bin/{python}")
    if home:
        prefixes.insert(0, posixpath.dirname(home[1]))
    if real:
        prefixes.append(posixpath.dirname(posixpath.dirname(real)))
    if prefix == "/usr/local":
        prefixes.append("/usr")
    return [f"{item.rstrip('/')}/include/{python}" for item in dict.fromkeys(prefixes)]


def _libc_header(facts: ImageFacts, name: str) -> bool:
    folders = ["/usr/include", "/usr/local/include"]
    folders += [
        posixpath.dirname(path)
        for path in facts.files
        if path.endswith("/sysroot/usr/include/stdio.h")
    ]
    return any(facts.lookup(f"{folder}/{name}") for folder in folders)


def linker_cache(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find that ldconfig is missing, by which Triton finds libcuda."""
    if not _applies(facts) or not facts.installed("triton") or facts.env.get("TRITON_LIBCUDA_PATH"):
        return
    if not any(facts.lookup(f"{folder}/ldconfig") for folder in ("/sbin", "/usr/sbin")):
        yield _say(
            rule,
            facts,
            "no /sbin/ldconfig in the image: Triton finds libcuda.so.1 by it",
            "/sbin/ldconfig",
            fix="install libc-bin, or set TRITON_LIBCUDA_PATH",
        )


RULES: Final = rules_of(
    "compile",
    (
        "compiler",
        compilers,
        '"Failed to find C compiler" at the first compiled function.',
        "install gcc and g++ (about 170 MB), or set `compile: false`",
        "pytorch/pytorch#116696",
    ),
    (
        "headers",
        headers,
        '"Python.h: No such file or directory" at the first Triton kernel.',
        "install the headers",
        "triton, runtime/build.py; sgl-project/sglang#1067",
    ),
    (
        "ldconfig",
        linker_cache,
        '"libcuda.so cannot found!" at the first Triton kernel.',
        "install libc-bin",
        "triton, third_party/nvidia/backend/driver.py",
    ),
)
