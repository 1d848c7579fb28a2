"""Family `recipe`: how containers are started, by docker, compose, Kubernetes or Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.launches.find import launches
from torchproof.audit.parsing.launches.launch import ALL, UNKNOWN_SIZE, Launch, Starter
from torchproof.audit.parsing.texts import yaml_of
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

DEFAULT_SHM = "64 MiB, the default of /dev/shm"
ENOUGH_SHM = 1 << 30
"""Bytes of /dev/shm below which several GPUs are at risk: NCCL takes about 10 MB a segment, and
DataLoader workers pass whole batches."""
CACHES = ("HOME", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")
SHM_REMEDY = {
    Starter.DOCKER: "add --shm-size=8g (or --ipc=host)",
    Starter.COMPOSE: "add shm_size: 8gb (or ipc: host)",
    Starter.KUBERNETES: "mount an emptyDir {medium: Memory, sizeLimit: 8Gi} at /dev/shm",
    Starter.SLURM: "let the container use the host's /dev/shm",
}


def unreadable(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find YAML that cannot be read: nothing else can be said of it."""
    for text in facts.texts:
        _, problem = yaml_of(text)
        if problem and "{{" not in text.text:
            yield rule.warning(f"is not valid YAML: {problem}", where=text.path)
        elif problem:
            yield rule.note("is a template, not YAML: audit what it renders", where=text.path)


def shared_memory(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find containers with several GPUs and too little /dev/shm."""
    for launch in facts.derived(launches):
        if launch.gpus is None or launch.host_ipc:
            continue
        several = launch.gpus > 1 or (launch.ranks or 0) > 1
        fix = SHM_REMEDY[launch.starter]
        if launch.shm_on_disk:
            yield rule.warning(
                f"{launch.what}: /dev/shm is an emptyDir on disk, not memory",
                where=launch.shm_where,
                fix="add medium: Memory",
            )
        elif launch.shm is None and several:
            yield rule.error(
                f"{launch.what} has {_count(launch)} and {DEFAULT_SHM}: NCCL between its GPUs ends "
                "with 'No space left on device'",
                where=launch.where,
                fix=fix,
            )
        elif launch.shm is None and launch.gpus == ALL:
            yield rule.warning(
                f"{launch.what} has all GPUs and {DEFAULT_SHM}: with more than one, NCCL fails",
                where=launch.where,
                fix=fix,
            )
        elif launch.shm is None:
            yield rule.note(
                f"{launch.what} has {DEFAULT_SHM}: DataLoader workers may end with a bus error",
                where=launch.where,
                fix=fix,
            )
        elif launch.shm is not None and UNKNOWN_SIZE < launch.shm < ENOUGH_SHM and several:
            make = rule.error if launch.shm <= 64 << 20 else rule.warning
            yield make(
                f"{launch.what} has {_count(launch)} and {launch.shm / 2**20:.0f} MiB of /dev/shm",
                where=launch.shm_where or launch.where,
                fix=fix,
            )


def _count(launch: Launch) -> str:
    if launch.gpus == ALL:
        return f"all GPUs, {launch.ranks} ranks" if launch.ranks else "all GPUs"
    return f"{launch.gpus} GPUs"


def ranks(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find more ranks on a node than GPUs that they see."""
    for launch in facts.derived(launches):
        started = launch.ranks
        if started is None or launch.gpus is None:
            continue
        visible = launch.env.get("CUDA_VISIBLE_DEVICES", "")
        listed = [name for name in visible.split(",") if name] if "$" not in visible else []
        gpus = min(launch.gpus, len(listed)) if listed and launch.gpus != ALL else launch.gpus
        if listed and launch.gpus == ALL:
            gpus = len(listed)
        if gpus != ALL and started > gpus:
            times = (
                f" ({launch.tasks} tasks of {started // launch.tasks})" if launch.tasks > 1 else ""
            )
            yield rule.error(
                f"{launch.what} starts {started} ranks{times} on {gpus} GPU(s): NCCL ends with "
                "'Duplicate GPU detected'",
                where=launch.where,
            )


def visible_devices(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a fixed choice of GPUs that fights with the one the scheduler makes."""
    for launch in facts.derived(launches):
        visible = launch.env.get("CUDA_VISIBLE_DEVICES", "")
        indexes = [int(item) for item in visible.split(",") if item.strip().isdigit()]
        if launch.gpus and launch.gpus != ALL and indexes and max(indexes) >= launch.gpus:
            yield rule.error(
                f"{launch.what}: CUDA_VISIBLE_DEVICES={visible}, but the container has "
                f"{launch.gpus} GPU(s), numbered from 0",
                where=launch.where,
            )
        everything = launch.env.get("NVIDIA_VISIBLE_DEVICES") == "all"
        if launch.starter is Starter.KUBERNETES and everything:
            yield rule.warning(
                f"{launch.what}: NVIDIA_VISIBLE_DEVICES=all gives the container GPUs that the "
                "scheduler gave to others",
                where=launch.where,
                fix="remove the variable; ask for nvidia.com/gpu",
            )


def home(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a user or a read-only root that leaves torch no place for its caches."""
    for launch in facts.derived(launches):
        has_cache = any(launch.env.get(name, "").strip("/") for name in CACHES) or launch.passwd
        uid = launch.user.partition(":")[0]
        foreign = bool(re.search(r"\d|\$", uid)) and uid != "0"
        if has_cache or not (foreign or launch.read_only):
            continue
        why = f"runs as {launch.user}" if foreign else "has a read-only root"
        yield rule.warning(
            f"{launch.what} {why} and no HOME is set: where the image has no such user, HOME is / "
            "and Triton, Inductor and the hub cannot write",
            where=launch.where,
        )


def locked_memory(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find RDMA without the right to lock memory."""
    for launch in facts.derived(launches):
        if launch.rdma and not launch.locks_memory:
            fix = {
                Starter.KUBERNETES: "add the capability IPC_LOCK",
                Starter.COMPOSE: "add ulimits: {memlock: -1}",
            }.get(launch.starter, "add --ulimit memlock=-1")
            yield rule.error(
                f"{launch.what} uses RDMA ({launch.rdma}) with the default limit of locked memory: "
                "ibv_reg_mr fails",
                where=launch.where,
                fix=fix,
            )


RULES: Final = rules_of(
    "recipe",
    ("yaml", unreadable, "Nothing in the file is checked.", "correct it", "YAML 1.1"),
    (
        "shm",
        shared_memory,
        "NCCL fails at the first collective, DataLoader workers with a bus error.",
        "give the container more shared memory",
        "NVIDIA/nccl#342, pytorch/ci-infra#490",
    ),
    (
        "ranks",
        ranks,
        '"Duplicate GPU detected", or several ranks share a GPU unseen.',
        "start one rank a GPU: --nproc-per-node=gpu",
        "NVIDIA/nccl#418, facebookresearch/ViewDiff#24",
    ),
    (
        "visible-devices",
        visible_devices,
        "The process sees no GPU, or another job's.",
        "leave the choice to the scheduler; inside a container GPUs count from 0",
        "NVIDIA k8s-device-plugin, README",
    ),
    (
        "home",
        home,
        "torch.compile and Triton fail with PermissionError '/.triton', getpass with KeyError.",
        "set HOME (or TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR) to a writable folder",
        "foundation-model-stack/fms-hf-tuning#367, pytorch/pytorch#140765",
    ),
    (
        "memlock",
        locked_memory,
        "NCCL over InfiniBand fails at start, or falls back to TCP.",
        "lift the limit of locked memory",
        "NVIDIA/nccl-tests#206",
    ),
)
