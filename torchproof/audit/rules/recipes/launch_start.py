"""Family `recipe`, second part: how a container's first process starts, and with what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.image_references import parse_reference
from torchproof.audit.parsing.launches.find import launches
from torchproof.audit.parsing.launches.launch import Starter, launcher_words
from torchproof.audit.parsing.launches.slurm import CONTAINER_TOOLS, directives
from torchproof.audit.parsing.texts import TextKind, kind_of, shell_uses
from torchproof.audit.parsing.words import option_values
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding


def rendezvous(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find fixed ports on the host's network, and a rendezvous that ignores its master."""
    for launch in facts.derived(launches):
        for command in launch.commands:
            words = launcher_words(command) or ()
            if words[:1] != ("torchrun",):
                continue
            dynamic = "c10d" in option_values(words, "--rdzv-backend", "--rdzv_backend") or any(
                option_values(words, "--rdzv-endpoint", "--rdzv_endpoint")
            )
            master = list(option_values(words, "--master-addr", "--master_addr"))
            if dynamic and master:
                yield rule.warning(
                    f"{launch.what}: --master-addr {master[0]} is ignored with --rdzv-endpoint: "
                    "rank 0 may be on another node",
                    where=launch.where,
                    fix="use --node-rank with --master-addr, or the endpoint alone",
                )
    yield from _fixed_ports(rule, facts)


def _fixed_ports(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    for launch in facts.derived(launches):
        if not launch.host_network or launch.starter is Starter.SLURM:
            continue
        port = launch.env.get("MASTER_PORT", "")
        for command in launch.commands:
            words = launcher_words(command) or ()
            port = next(option_values(words, "--master-port", "--master_port"), port)
        if port.isdigit() and port != "0":
            yield rule.warning(
                f"{launch.what} has the host's network and the fixed port {port}: a second job on "
                "that host ends with EADDRINUSE",
                where=launch.where,
                fix="use --standalone or --rdzv-endpoint=HOST:0, or a port made from the job's id",
            )


def signals(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a shell as process 1 that does not pass signals on."""
    for launch in facts.derived(launches):
        inner = [command for command in launch.commands[1:] if command.words]
        if not launch.shell or launch.init or launch.starter is Starter.SLURM or len(inner) < 2:
            continue
        if "exec" not in inner[-1].wrappers:
            yield rule.warning(
                f"{launch.what}: process 1 is a shell, which keeps SIGTERM from {inner[-1].name}",
                where=launch.where,
            )


def device_nodes(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find hand-made lists of devices that lack one which CUDA needs."""
    for launch in facts.derived(launches):
        names = [device.split(":")[0] for device in launch.devices]
        if not any(re.fullmatch(r"/dev/nvidia\d+", name) for name in names):
            continue
        missing = [name for name in ("/dev/nvidiactl", "/dev/nvidia-uvm") if name not in names]
        if missing:
            yield rule.error(
                f"{launch.what} passes GPUs device by device, without {' and '.join(missing)}",
                where=launch.where,
            )


def image_tag(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find images that are started by a tag which moves."""
    for launch in facts.derived(launches):
        name = re.sub(r"^(docker|dockerd)://", "", launch.image).replace("#", "/")
        reference = parse_reference(name)
        known = reference is not None and launch.gpus is not None
        if reference is not None and known and reference.floats and not reference.local:
            tag = reference.tag or "latest (no tag is written)"
            yield rule.warning(
                f"{launch.what} starts {launch.image} by the tag {tag}", where=launch.where
            )


def singularity_gpus(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find singularity or apptainer without --nv in a job that asks for GPUs."""
    for text in facts.texts:
        if kind_of(text) is not TextKind.SHELL:
            continue
        asked = directives(text)
        gpus = any(name in asked for name in ("--gpus", "-G", "--gpus-per-node", "--gpus-per-task"))
        if not gpus and "gpu" not in asked.get("--gres", ""):
            continue
        for use in shell_uses(text):
            words = list(use.command.words)
            at = next(
                (i for i, word in enumerate(words) if word.rsplit("/")[-1] in CONTAINER_TOOLS[:2]),
                -1,
            )
            tail = words[at + 1 :] if at >= 0 else []
            if not {"exec", "run", "shell"} & set(tail[:4]):
                continue
            if not {"--nv", "--nvccli"} & set(tail) and not use.variables.get("APPTAINER_NV"):
                yield rule.error(
                    f"{words[at]} without --nv: the container of this GPU job sees no GPU",
                    where=use.where,
                )


RULES: Final = rules_of(
    "recipe",
    (
        "rendezvous",
        rendezvous,
        "Ranks wait for a master that is elsewhere, or a port that is taken.",
        "choose one kind of rendezvous, and a free port",
        "pytorch/pytorch#137402, #126510",
    ),
    (
        "signals",
        signals,
        "The end of a pod never reaches the job: no checkpoint, then SIGKILL.",
        "put exec before the last command, or set init",
        "skypilot-org/skypilot#5041",
    ),
    (
        "devices",
        device_nodes,
        "nvidia-smi works, and CUDA says unknown error.",
        "use --gpus or CDI (nvidia.com/gpu=0), or add the missing devices",
        "pytorch/pytorch#49081",
    ),
    (
        "image-tag",
        image_tag,
        "Nodes and days run different images under one name.",
        "name the image by digest (name@sha256:…) or by an immutable tag",
        "llm-d/llm-d-benchmark#1573",
    ),
    (
        "singularity-nv",
        singularity_gpus,
        "torch finds no GPU on a node that has them.",
        "add --nv",
        "Apptainer user guide, GPU support",
    ),
)
