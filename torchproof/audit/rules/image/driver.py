"""Family `driver`: the image against the host's driver, which is mounted when it starts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from torchproof.audit.facts import FileKind, ImageFacts, Subject
from torchproof.audit.model.loader import conf_directories
from torchproof.audit.model.require_cuda import admits, least_cuda
from torchproof.audit.rule import Rule, rules_of
from torchproof.audit.rules.image.architectures import host_answers
from torchproof.model.results import Finding
from torchproof.upstream.facts import load_facts
from torchproof.upstream.host_fit import Fit, HostRule

DRIVER_CONF: Final = "nvidia.conf"
"""The file in ld.so.conf.d that names the driver's directories, where the base has one."""
LIBCUDA: Final = re.compile(r"^libcuda\.so(\.\d+)*$")


def hosts_too_old(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find declared hosts whose driver does not run this CUDA.

    A matrix may declare hosts for other cells: only an image that fits no host is an error.
    """
    answers = facts.derived(host_answers)
    elsewhere = any(answer.runs for _, _, answer in answers)
    for host, _, answer in answers:
        if answer.rule is HostRule.DEVICE_CODE or answer.runs:
            continue
        report = rule.warning if answer.fit is Fit.FORWARD else rule.error
        if elsewhere:
            report = rule.note
        yield report(
            f"host {host}: {answer.reason}", where=f"hosts: {host}", fix="; ".join(answer.change)
        )


def compat_first(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find forward-compatibility libraries that would always be loaded before the host's driver."""
    places = _driver_library_places(facts)
    compat = {
        folder: version for folder, version in places.items() if "compat" in folder.split("/")
    }
    reported = False
    for folder, path in conf_directories(facts):
        real = facts.resolve(folder) or folder
        if real in compat or "compat" in folder.split("/"):
            reported = True
            early = posixpath.basename(path) <= DRIVER_CONF
            version = compat.get(real) or "of the toolkit"
            branch = version.split(".")[0] if version[0].isdigit() else ""
            newer = (
                f"hosts with a driver newer than {branch}"
                if branch
                else "hosts with a newer driver"
            )
            report = rule.error if early else rule.warning
            yield report(
                f"{path} puts compat libcuda {version} ({folder}) before the host's driver: "
                f"{newer} fail with error 803",
                where=path,
            )
    for folder in facts.env.get("LD_LIBRARY_PATH", "").split(":"):
        real = facts.resolve(folder) or folder
        if folder and (real in compat or "compat" in folder.split("/")):
            reported = True
            yield rule.error(
                f"ENV LD_LIBRARY_PATH has {folder}: compat libcuda "
                f"{compat.get(real, '')} wins over every host's driver (error 803 on newer ones)",
                where="ENV LD_LIBRARY_PATH",
            )
    if not reported:
        for folder, version in compat.items():
            yield rule.note(
                f"{folder} holds forward-compatibility libraries {version}; nothing puts them "
                "first, but some container runtimes mount them on their own",
                where=folder,
            )


def stub_first(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find stub or copied driver libraries on the loader's path."""
    searched = {
        facts.resolve(folder) or folder: "ENV LD_LIBRARY_PATH"
        for folder in facts.env.get("LD_LIBRARY_PATH", "").split(":")
        if folder
    }
    searched |= {facts.resolve(folder) or folder: path for folder, path in conf_directories(facts)}
    for folder, who in searched.items():
        if folder.endswith("/stubs"):
            yield rule.error(
                f"{who} names {folder}: the stub of libcuda is loaded in place of the driver "
                '("CUDA driver is a stub library")',
                where=who,
                fix="use stubs for linking only: `-L…/stubs` at build time",
            )
    if facts.subject is Subject.ENVIRONMENT:
        return
    for folder, version in _driver_library_places(facts).items():
        parts = folder.split("/")
        if "compat" not in parts and "stubs" not in parts and version:
            yield rule.warning(
                f"{folder} holds libcuda {version} of a driver: an image must not contain one",
                where=folder,
                fix="remove it; the container runtime mounts the host's",
            )


def _driver_library_places(facts: ImageFacts) -> dict[str, str]:
    """Return directories with a real libcuda → its version, from its file name."""
    found: dict[str, str] = {}
    for entry in facts.files.values():
        name = posixpath.basename(entry.path)
        if entry.kind is FileKind.FILE and LIBCUDA.match(name):
            version = name.removeprefix("libcuda.so").removeprefix(".")
            found[posixpath.dirname(entry.path)] = version if "." in version else ""
    return found


def require_cuda(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find declared hosts on which the container would refuse to start."""
    wanted = facts.env.get("NVIDIA_REQUIRE_CUDA", "")
    if not wanted or facts.env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        return
    unfit = {name for name, _, answer in facts.derived(host_answers) if not answer.runs}
    for host in facts.hosts:
        if host.driver and host.name not in unfit and not admits(wanted, host):
            shown = wanted if len(wanted) < 80 else wanted[:77] + "…"
            yield rule.error(
                f"host {host.name}: on driver {host.driver} this image does not start "
                f"(NVIDIA_REQUIRE_CUDA {shown})",
                where="ENV NVIDIA_REQUIRE_CUDA",
                fix=_require_fix(wanted),
            )


def too_strict(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Note a requirement that refuses drivers which run this torch."""
    wanted = facts.env.get("NVIDIA_REQUIRE_CUDA", "")
    least = least_cuda(wanted)
    if least and least.minor > 0 and facts.torch is not None:
        floor = load_facts().driver_floor(f"cu{least.major}0")
        yield rule.note(
            f"NVIDIA_REQUIRE_CUDA asks for cuda>={least}: drivers from {floor} on run CUDA "
            f"{least.major} by minor-version compatibility, but are refused",
            where="ENV NVIDIA_REQUIRE_CUDA",
            fix=f"set NVIDIA_REQUIRE_CUDA=cuda>={least.major}.0",
        )


def _require_fix(wanted: str) -> str:
    match = re.search(r"cuda>=(\d+\.\d+)", wanted)
    cuda = match[1] if match else ""
    driver = load_facts().toolkit_driver.get(cuda, "")
    needs = f"driver {driver} or newer, " if driver else "a newer driver, "
    return f"{needs}or NVIDIA_DISABLE_REQUIRE=true where minor-version compatibility is enough"


def capabilities(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find variables of the NVIDIA runtime that keep the GPU or CUDA out of the container."""
    visible = facts.env.get("NVIDIA_VISIBLE_DEVICES")
    if visible is not None and visible.lower() in ("", "void", "none"):
        yield rule.error(
            f"ENV NVIDIA_VISIBLE_DEVICES={visible}: the container sees no GPU",
            where="ENV NVIDIA_VISIBLE_DEVICES",
            fix="set NVIDIA_VISIBLE_DEVICES=all, or leave it out",
        )
    stated = facts.env.get("NVIDIA_DRIVER_CAPABILITIES", "")
    parts = set(stated.lower().split(","))
    if stated and not parts & {"all", "compute"}:
        yield rule.error(
            f"ENV NVIDIA_DRIVER_CAPABILITIES={stated} lacks compute: libcuda is not mounted",
            where="ENV NVIDIA_DRIVER_CAPABILITIES",
        )
    elif stated and not parts & {"all", "utility"}:
        yield rule.note(
            f"ENV NVIDIA_DRIVER_CAPABILITIES={stated} lacks utility: no nvidia-smi, no NVML",
            where="ENV NVIDIA_DRIVER_CAPABILITIES",
        )


RULES: Final = rules_of(
    "driver",
    (
        "hosts",
        hosts_too_old,
        '"CUDA driver version is insufficient for CUDA runtime version".',
        "take a cell of an older CUDA, or upgrade the driver",
        "NVIDIA CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility",
    ),
    (
        "compat",
        compat_first,
        'Hosts with a newer driver fail: "Error 803: system has unsupported display driver".',
        "remove the entry; let users opt in with LD_LIBRARY_PATH when they start the image",
        "vllm-project/vllm#33992; NVIDIA CUDA Compatibility, forward compatibility",
    ),
    (
        "stub",
        stub_first,
        "A libcuda of the image is loaded in place of the host's driver.",
        "remove the directory from LD_LIBRARY_PATH and ld.so.conf.d",
        "NVIDIA CUDA installation guide, stubs",
    ),
    (
        "require",
        require_cuda,
        'The container does not start: "unsatisfied condition: cuda>=12.8".',
        "upgrade the driver, take an older image, or set NVIDIA_DISABLE_REQUIRE",
        "NVIDIA/nvidia-container-toolkit#152, theroyallab/tabbyAPI#324",
    ),
    (
        "strict",
        too_strict,
        "Hosts that could run the image by minor-version compatibility are refused.",
        "ask for the major version of CUDA only",
        "docs.nvidia.com/deploy/cuda-compatibility, minor-version compatibility",
    ),
    (
        "capabilities",
        capabilities,
        "The container runtime mounts no driver, so torch sees no GPU.",
        "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "NVIDIA container toolkit, environment variables",
    ),
)
