"""Kubernetes manifests → launches: whatever kind holds a pod (Job, PyTorchJob, a custom one)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchproof.audit.parsing.launches.launch import UNKNOWN_SIZE, Launch, Starter, inside, size
from torchproof.audit.parsing.manifests import Mapped, environment, mappings, strings, walk

SHM = "/dev/shm"
GPU_KEYS = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/pgpu")


def kubernetes_launches(path: str, document: Mapped) -> Iterator[Launch]:
    """Yield the containers of every pod (template) in a manifest; none for anything else."""
    if "apiVersion" not in document or "kind" not in document:
        return
    metadata = document.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, Mapped) else ""
    owner = f"{document['kind']} {name}".strip()
    for pod in walk(document):
        for container in mappings(pod.get("containers")):
            yield _container(path, owner, pod, container)


def _container(path: str, owner: str, pod: Mapped, container: Mapped) -> Launch:
    words = [*strings(container.get("command")), *strings(container.get("args"))]
    line = container.at("command" if "command" in container else "args")
    commands, shell = inside(words, line)
    shm, where, on_disk = _shm(pod, container)
    security = _merged(pod.get("securityContext"), container.get("securityContext"))
    capabilities = security.get("capabilities")
    added = strings(capabilities.get("add")) if isinstance(capabilities, Mapped) else []
    resources = _resources(container)
    user = security.get("runAsUser")
    return Launch(
        starter=Starter.KUBERNETES,
        what=f"{owner}, container {container.get('name', '?')}",
        where=f"{path}:{container.line}",
        image=str(container.get("image", "")),
        gpus=_gpus(resources),
        shm=shm,
        shm_where=f"{path}:{where}" if where else "",
        shm_on_disk=on_disk,
        host_ipc=bool(pod.get("hostIPC")),
        host_network=bool(pod.get("hostNetwork")),
        user="" if user is None else str(user),
        read_only=bool(security.get("readOnlyRootFilesystem")),
        env=environment(container.get("env")),
        commands=commands,
        shell=shell,
        init=bool(pod.get("shareProcessNamespace")),
        rdma=_rdma(container, resources),
        locks_memory=bool({"IPC_LOCK", "ALL"} & set(added)) or bool(security.get("privileged")),
    )


def _merged(*contexts: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for context in contexts:
        merged |= context if isinstance(context, dict) else {}
    return merged


def _resources(container: Mapped) -> dict[str, str]:
    found: dict[str, str] = {}
    resources = container.get("resources")
    for key in ("requests", "limits"):
        part = resources.get(key) if isinstance(resources, Mapped) else None
        found |= environment(part) if isinstance(part, Mapped) else {}
    return found


def _gpus(resources: dict[str, str]) -> int | None:
    counts = [
        int(value)
        for key, value in resources.items()
        if (key in GPU_KEYS or key.startswith("nvidia.com/mig-")) and value.isdigit()
    ]
    return sum(counts) or None


def _rdma(container: Mapped, resources: dict[str, str]) -> str:
    mounts = [str(item.get("mountPath", "")) for item in mappings(container.get("volumeMounts"))]
    asked = [key for key in resources if "rdma/" in key or "infiniband" in key]
    return next((name for name in (*asked, *mounts) if re.search("rdma/|infiniband", name)), "")


def _shm(pod: Mapped, container: Mapped) -> tuple[int | None, int, bool]:
    """Return bytes of /dev/shm (None: the default), the line that says so, and if it is a disk."""
    volumes = {str(item.get("name")): item for item in mappings(pod.get("volumes"))}
    for mount in mappings(container.get("volumeMounts")):
        if str(mount.get("mountPath", "")).rstrip("/") != SHM:
            continue
        volume = volumes.get(str(mount.get("name")))
        if volume is None:
            return None, mount.line, False
        empty = volume.get("emptyDir")
        if "emptyDir" not in volume:
            return UNKNOWN_SIZE, volume.line, False
        empty = empty if isinstance(empty, Mapped) else Mapped(volume.line)
        limit = empty.get("sizeLimit")
        on_disk = str(empty.get("medium", "")) != "Memory"
        return (size(str(limit)) if limit else UNKNOWN_SIZE), volume.line, on_disk
    return None, 0, False
