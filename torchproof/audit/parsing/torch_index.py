"""What an install says of torch: which index, which CUDA, on which base. Pure; for the rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.find_installs import installs, with_files
from torchproof.audit.parsing.image_references import parse_reference
from torchproof.audit.parsing.install_request import Install

_BACKEND = re.compile(
    r"/whl/(?:(?P<channel>nightly|test)/)?(?P<cuda>cu\d{2,3}|cpu|rocm[\d.]+|xpu)\b"
)
_PYTORCH = re.compile(r"pytorch[\w.-]*/whl|/whl/(nightly/)?(cu|cpu|rocm|xpu)")


def backend(url: str) -> str:
    """Return the CUDA of a PyTorch index URL ("cu128", "cpu"); "" for any other URL."""
    match = _BACKEND.search(url)
    return match["cuda"] if match else ""


def is_pytorch(url: str) -> bool:
    """Tell whether a URL is one of the PyTorch indexes or a mirror laid out like them."""
    return bool(_PYTORCH.search(url))


def torch_installs(facts: ImageFacts) -> Iterator[tuple[Install, tuple[Requirement, ...]]]:
    """Yield the installs by pip or uv that name torch or its companions, files included."""
    for install in facts.derived(installs):
        if install.tool not in ("pip", "uv", "requirements") or install.verb == "run":
            continue
        whole = with_files(install, facts)
        family = whole.torch_family()
        if family:
            yield whole, family


def exact(wanted: Requirement) -> Version | None:
    """Return the version of a `==` requirement."""
    for specifier in wanted.specifier:
        if specifier.operator in ("==", "===") and not specifier.version.endswith(".*"):
            try:
                return Version(specifier.version)
            except InvalidVersion:
                return None
    return None


def torch_of(family: Iterable[Requirement]) -> Requirement | None:
    """Return the requirement of torch itself."""
    return next((item for item in family if canonicalize_name(item.name) == "torch"), None)


def chooses_cuda(install: Install, family: Iterable[Requirement]) -> bool:
    """Tell whether an install says which CUDA it wants."""
    local = any((version := exact(item)) and version.local for item in family)
    return bool(
        local
        or any(is_pytorch(url) or "$" in url for url in install.indexes)
        or install.has("--torch-backend", "-f", "--find-links", "--no-index", "--no-deps")
        or (install.use and install.use.variables.get("UV_TORCH_BACKEND"))
    )


def base_cuda(install: Install) -> str | None:
    """Return the CUDA version of the base that an install runs on ("12.9"), if it is known."""
    if install.use is None:
        return None
    reference = parse_reference(install.use.base)
    if reference is not None and reference.cuda:
        return reference.cuda
    stated = re.match(r"\d+\.\d+", install.use.variables.get("CUDA_VERSION", ""))
    return stated.group() if stated else None


def on_arm64(install: Install) -> bool:
    """Tell whether an install is for a 64-bit Arm CPU."""
    use = install.use
    if use is None:
        return False
    words = f"{use.platform} {use.base}"
    return bool(re.search(r"arm64|aarch64|sbsa|l4t", words)) or any(
        re.search(r"aarch64", option) for option in install.requirements
    )
