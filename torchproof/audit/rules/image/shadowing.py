"""Family `shadowing`: what takes the place of the installed torch, or changes it unseen."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from torchproof.audit.facts import FileKind, ImageFacts
from torchproof.audit.model.programs import image_user
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

MODULES: Final = (
    *("torch", "torchvision", "torchaudio", "triton", "numpy", "functorch", "torchgen", "nvidia"),
    *("transformers", "accelerate", "deepspeed", "safetensors", "sympy", "jinja2", "filelock"),
)
"""Modules whose place a folder of a source tree takes most often."""
HARMLESS_PTH: Final = re.compile(
    r"^(distutils-precedence|_virtualenv|.*-nspkg|__editable__.*|a1_coverage|zzz_.*|"
    r"matplotlib.*nspkg|pywin32|easy-install|setuptools|_uv_ephemeral_overlay|google.*)\.pth$"
)
CUDA_LIBRARIES: Final = re.compile(r"/lib(nccl|cudnn|cublas|cuda|torch|c10|nvrtc|cusparse)\w*\.so")
ODD_ENVIRONMENT: Final = {
    "PYTHONHOME": (r".+", "Python looks for its library there, whatever environment is active"),
    "PYTORCH_SKIP_CUDNN_COMPATIBILITY_CHECK": (r"1", "a cuDNN that does not fit goes unseen"),
    "CUDA_LAUNCH_BLOCKING": (r"1", "every kernel waits for the one before it"),
    "CUDA_VISIBLE_DEVICES": (r"(?!all$)[^$]*", "GPUs are chosen when the image is built"),
    "NCCL_P2P_DISABLE": (r"1", "GPUs talk through the host's memory"),
    "NCCL_SHM_DISABLE": (r"1", "GPUs talk through the network"),
    "NCCL_IB_DISABLE": (r"1", "NCCL uses TCP even where InfiniBand is there"),
    "CUDA_MODULE_LOADING": (r"(?!LAZY$|EAGER$|DEFAULT$).*", "no such mode of loading exists"),
    "OMP_NUM_THREADS": (r"1", "the CPU part of every job has one thread"),
}
"""Variable → (values that are odd in an image, what they do)."""


def _provider(facts: ImageFacts, folder: str, name: str) -> str | None:
    """Return the file that `import name` would load from a folder; None if it would load none."""
    package = f"{folder.rstrip('/')}/{name}"
    entry = facts.lookup(package)
    if entry is not None and entry.kind is FileKind.DIRECTORY:
        for inner in facts.listdir(package):
            if re.fullmatch(r"__init__\.(py|pyc|.*\.so)", inner):
                return f"{package}/{inner}"
    for found in facts.listdir(folder):
        if re.fullmatch(rf"{name}\.(py|pyc|([\w-]+\.)*so)", found):
            return f"{folder.rstrip('/')}/{found}"
    return None


def import_folders(facts: ImageFacts) -> Iterator[tuple[str, str]]:
    """Yield (what names it, folder) of everything that comes before site-packages on sys.path."""
    if facts.config is not None and not facts.env.get("PYTHONSAFEPATH"):
        yield "WORKDIR", facts.config.workdir or "/"
    for folder in facts.env.get("PYTHONPATH", "").split(":"):
        if folder.startswith("/"):
            yield "PYTHONPATH", folder
    if facts.env.get("PYTHONNOUSERSITE") or facts.torch is None:
        return
    user = image_user(facts) if facts.config else None
    home = facts.env.get("HOME") or (user.home if user else "") or "/root"
    version = re.search(r"/(python\d\.\d+)/", facts.torch.site)
    if version:
        yield "the user's site", f"{home.rstrip('/')}/.local/lib/{version[1]}/site-packages"


def shadows(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find modules that would be imported instead of the installed ones."""
    if facts.torch is None:
        return
    installed = {item.site for item in facts.distributions}
    for what, folder in import_folders(facts):
        real = facts.resolve(folder)
        if real is None or (real == facts.torch.site and what != "the user's site"):
            continue
        for name in MODULES:
            mine = _provider(facts, facts.torch.site, name)
            other = _provider(facts, real, name) if mine else None
            if other is None or other == mine:
                continue
            owned = real in installed
            why = " (another installation)" if owned else ""
            yield rule.error(
                f"{what} {folder} contains {posixpath.relpath(other, real)}{why}: `import {name}` "
                f"loads it instead of {mine}",
                where=other,
            )


def dead_folders(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find PYTHONPATH entries for another Python."""
    version = re.search(r"/python(\d\.\d+)/", facts.torch.site) if facts.torch else None
    for folder in facts.env.get("PYTHONPATH", "").split(":"):
        theirs = re.search(r"/python(\d\.\d+)/", folder + "/")
        if version and theirs and theirs[1] != version[1]:
            yield rule.error(
                f"PYTHONPATH names {folder}, packages of Python {theirs[1]}; torch is installed "
                f"for {version[1]}",
                where=folder,
            )


def preloads(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find libraries that are loaded into every program."""
    named = [("ENV LD_PRELOAD", facts.env.get("LD_PRELOAD", ""))]
    named.append(("/etc/ld.so.preload", facts.text("/etc/ld.so.preload") or ""))
    for what, value in named:
        for name in re.split(r"[\s:]+", value):
            if not name:
                continue
            if name.startswith("/") and "$" not in name and facts.lookup(name) is None:
                yield rule.warning(f"{what} names {name}, which is not in the image", where=name)
            elif CUDA_LIBRARIES.search("/" + name):
                yield rule.warning(
                    f"{what} loads {name} into every program: it replaces the wheels' own",
                    where=name,
                )


def start_hooks(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find code that runs at every start of Python, and .pth files that lead nowhere."""
    if facts.torch is None:
        return
    site = facts.torch.site
    for name in ("sitecustomize.py", "usercustomize.py"):
        if facts.lookup(f"{site}/{name}"):
            yield rule.note(f"{name} runs at every start of Python", where=f"{site}/{name}")
    for name in facts.listdir(site):
        if not name.endswith(".pth"):
            continue
        path = f"{site}/{name}"
        for line in (facts.text(path) or "").splitlines():
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if re.match(r"import[ \t]", text):
                if not HARMLESS_PTH.match(name):
                    yield rule.note(f"{name} runs code at every start of Python", where=path)
                    break
                continue
            folder = posixpath.normpath(posixpath.join(site, text))
            if facts.lookup(folder) is None:
                yield rule.warning(
                    f"{name} adds {text} to sys.path, which is not in the image", where=path
                )


def environment(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find variables that change how torch runs, built into the image."""
    for name, (values, effect) in ODD_ENVIRONMENT.items():
        value = facts.env.get(name)
        if value is not None and re.fullmatch(values, value):
            yield rule.warning(f"ENV {name}={value}: {effect}", where=f"ENV {name}")


RULES: Final = rules_of(
    "shadowing",
    (
        "module",
        shadows,
        "No module named 'torch.version', or quietly another torch.",
        "move the folder, choose another WORKDIR, or set PYTHONSAFEPATH=1",
        "pytorch/pytorch#12074",
    ),
    (
        "pythonpath",
        dead_folders,
        "Extension modules of another Python fail to import.",
        "remove the entry from PYTHONPATH",
        "Python documentation, PYTHONPATH",
    ),
    (
        "preload",
        preloads,
        "Every program loads a library that the wheels did not choose.",
        "unset LD_PRELOAD",
        "ld.so(8)",
    ),
    (
        "start-hook",
        start_hooks,
        "Imports differ from what is installed, and nothing shows it.",
        "remove the file, or install the package that it belongs to",
        "Python documentation, site",
    ),
    (
        "environment",
        environment,
        "Jobs are slow or wrong for a reason that no log names.",
        "set it where the job starts, not in the image",
        "NVIDIA NCCL, environment variables; CUDA programming guide",
    ),
)
