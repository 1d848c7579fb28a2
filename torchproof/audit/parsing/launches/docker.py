"""`docker run` lines and compose services → launches. Podman and nerdctl take the same options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from torchproof.audit.parsing.launches.launch import ALL, Launch, Starter, inside, options, size
from torchproof.audit.parsing.manifests import Listed, Mapped, environment, mappings, strings
from torchproof.audit.parsing.texts import ShellUse
from torchproof.audit.parsing.words import expand

_VALUED = frozenset(
    {
        *("-a", "-c", "-e", "-h", "-l", "-m", "-p", "-u", "-v", "-w", "--add-host", "--annotation"),
        *("--attach", "--blkio-weight", "--cap-add", "--cap-drop", "--cgroup-parent", "--cidfile"),
        *("--cgroupns", "--cpus", "--cpu-shares", "--cpuset-cpus", "--cpuset-mems", "--device"),
        *("--device-cgroup-rule", "--dns", "--dns-search", "--entrypoint", "--env", "--env-file"),
        *("--expose", "--gpus", "--group-add", "--health-cmd", "--hostname", "--ip", "--ipc"),
        *("--isolation", "--label", "--label-file", "--link", "--log-driver", "--log-opt"),
        *("--mac-address", "--memory", "--memory-swap", "--mount", "--name", "--net", "--network"),
        *("--network-alias", "--oom-score-adj", "--pid", "--pids-limit", "--platform", "--publish"),
        *("--pull", "--restart", "--runtime", "--security-opt", "--shm-size", "--stop-signal"),
        *("--stop-timeout", "--storage-opt", "--sysctl", "--tmpfs", "--ulimit", "--user"),
        *("--userns", "--uts", "--volume", "--volume-driver", "--volumes-from", "--workdir"),
        *("--pod", "--secret", "--hooks-dir", "--authfile", "--cpu-period", "--cpu-quota"),
    }
)
_GLOBAL = frozenset(
    {"-H", "--host", "-c", "--context", "--config", "--log-level", "-l", "--runtime"}
)


def docker_launch(use: ShellUse) -> Launch | None:
    """Read a `docker run` (or create) command; None for any other command."""
    words = use.command.words
    if use.command.name not in ("docker", "podman", "nerdctl", "nvidia-docker", "docker.exe"):
        return None
    _, at = options(words[1:], _GLOBAL)
    rest = words[1 + at :]
    if rest[:1] == ("container",):
        rest = rest[1:]
    if not rest or rest[0] not in ("run", "create"):
        return None
    given, end = options([expand(word, use.variables) for word in rest[1:]], _VALUED)
    behind = [expand(word, use.variables) for word in rest[1 + end :]]
    many: dict[str, list[str]] = {}
    for name, value in given:
        many.setdefault(name, []).append(value)

    def values(*names: str) -> list[str]:
        return [value for name in names for value in many.get(name, ())]

    env = environment(values("-e", "--env"))
    commands, shell = inside([*values("--entrypoint")[-1:], *behind[1:]], use.command.line)
    mounts = [*values("-v", "--volume"), *values("--mount"), *values("--tmpfs")]
    devices = tuple(values("--device"))
    runtime = "nvidia" in values("--runtime") or use.command.name == "nvidia-docker"
    ipc, network = values("--ipc")[-1:], values("--network", "--net")[-1:]
    return Launch(
        starter=Starter.DOCKER,
        what=f"{use.command.name} {rest[0]}",
        where=use.where,
        image=behind[0] if behind else "",
        gpus=_gpus(values("--gpus"), devices, env, runtime=runtime),
        shm=_shm(values("--shm-size"), mounts),
        host_ipc=bool(ipc) and not re.match(r"(private|shareable|none)$", ipc[0]),
        host_network=network == ["host"],
        user="" if values("--userns") else "".join(values("-u", "--user")[-1:]),
        passwd=any("/etc/passwd" in mount for mount in mounts),
        read_only="--read-only" in many,
        env=env,
        commands=commands,
        shell=shell,
        init="--init" in many,
        rdma=next((device for device in devices if "infiniband" in device), ""),
        locks_memory=any(re.match(r"memlock=(-1|unlimited)", item) for item in values("--ulimit")),
        devices=devices,
    )


def _gpus(
    flags: list[str], devices: tuple[str, ...], env: dict[str, str], *, runtime: bool
) -> int | None:
    text = flags[-1].strip("\"'") if flags else ""
    if text:
        listed = re.search(r"device=([^\"']+)", text)
        count = re.fullmatch(r"(?:count=)?(\d+)(,.*)?", text)
        if listed:
            return len([name for name in listed[1].split(",") if "=" not in name])
        return int(count[1]) if count else ALL
    cdi = [device for device in devices if device.startswith("nvidia.com/gpu")]
    if cdi:
        return ALL if any(device.endswith("=all") for device in cdi) else len(cdi)
    nodes = [device for device in devices if re.match(r"/dev/nvidia\d+\b", device)]
    if nodes:
        return len(nodes)
    return _visible(env.get("NVIDIA_VISIBLE_DEVICES", "all")) if runtime else None


def _visible(text: str) -> int | None:
    if text in ("all", "") or "$" in text:
        return ALL
    return None if text in ("none", "void") else len(text.split(","))


def _shm(sizes: list[str], mounts: list[str]) -> int | None:
    if sizes:
        return size(sizes[-1])
    for mount in mounts:
        if "/dev/shm" in mount:
            limit = re.search(r"(?:tmpfs-)?size=([\w.]+)", mount)
            return size(limit[1]) if limit else -1
    return None


def compose_launches(path: str, document: Mapped) -> Iterator[Launch]:
    """Yield the services of a compose file."""
    services = document.get("services")
    if not isinstance(services, Mapped):
        return
    for name, service in services.items():
        if isinstance(service, Mapped):
            yield _service(path, str(name), services.at(name), service)


def _service(path: str, name: str, line: int, service: Mapped) -> Launch:
    env = environment(service.get("environment"))
    words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
    commands, shell = inside(words, service.at("command"))
    mounted = service.get("volumes")
    volumes = [*strings(mounted), *(str(item.get("target", "")) for item in mappings(mounted))]
    tmpfs = [text for text in strings(service.get("tmpfs")) if "/dev/shm" in text]
    ulimits = service.get("ulimits")
    memlock = ulimits.get("memlock") if isinstance(ulimits, Mapped) else None
    if isinstance(memlock, Mapped):
        memlock = memlock.get("soft")
    devices = tuple(strings(service.get("devices")))
    shm = service.get("shm_size")
    ipc = str(service.get("ipc", ""))
    return Launch(
        starter=Starter.COMPOSE,
        what=f"service {name}",
        where=f"{path}:{line}",
        image=str(service.get("image", "")),
        gpus=_compose_gpus(service, devices, env),
        shm=size(str(shm)) if shm is not None else _shm([], [*volumes, *tmpfs]),
        host_ipc=ipc.startswith(("host", "service:", "container:")),
        host_network=str(service.get("network_mode", "")) == "host",
        user=str(service.get("user", "")),
        passwd=any("/etc/passwd" in volume for volume in volumes),
        read_only=bool(service.get("read_only")),
        env=env,
        commands=commands,
        shell=shell,
        init=bool(service.get("init")),
        rdma=next((device for device in devices if "infiniband" in device), ""),
        locks_memory=str(memlock) in ("-1", "unlimited"),
        devices=devices,
    )


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError:
            return value.split()
    return strings(value)


def _compose_gpus(service: Mapped, devices: tuple[str, ...], env: dict[str, str]) -> int | None:
    wanted: list[Any] = []
    if isinstance(service.get("gpus"), str):
        return ALL
    if isinstance(service.get("gpus"), Listed):
        wanted += service["gpus"]
    node: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        node = node.get(key) if isinstance(node, Mapped) else None
    wanted += node if isinstance(node, Listed) else []
    total: int | None = None
    for item in mappings(wanted):
        kinds = strings(item.get("capabilities"))
        if kinds and "gpu" not in kinds:
            continue
        ids, count = item.get("device_ids"), item.get("count")
        if ids:
            total = (total or 0) + len(strings(ids))
        elif isinstance(count, int) and not isinstance(count, bool):
            total = (total or 0) + max(count, 0)
        else:
            return ALL
    if total is not None:
        return total
    return _gpus([], devices, env, runtime=str(service.get("runtime", "")) == "nvidia")
