"""Every launch among the texts of an image: docker lines, compose, Kubernetes, Slurm. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.launches.docker import compose_launches, docker_launch
from torchproof.audit.parsing.launches.kubernetes import kubernetes_launches
from torchproof.audit.parsing.launches.launch import Launch
from torchproof.audit.parsing.launches.slurm import slurm_launches
from torchproof.audit.parsing.manifests import Mapped
from torchproof.audit.parsing.shell import parse_shell
from torchproof.audit.parsing.texts import ShellUse, TextKind, kind_of, shell_uses, yaml_of


def launches(facts: ImageFacts) -> tuple[Launch, ...]:
    """Return every launch of every text; ask for it by `facts.derived(launches)`."""
    return tuple(_launches(facts))


def _launches(facts: ImageFacts) -> Iterator[Launch]:
    for text in facts.texts:
        if kind_of(text) is TextKind.DOCKERFILE:
            continue
        for document in yaml_of(text)[0]:
            yield from compose_launches(text.path, document)
            yield from kubernetes_launches(text.path, document)
            yield from _job_containers(text.path, document)
        for use in shell_uses(text):
            if launch := docker_launch(use):
                yield launch
        if kind_of(text) is TextKind.SHELL:
            yield from slurm_launches(text)


def _job_containers(path: str, document: Mapped) -> Iterator[Launch]:
    """Yield the containers that jobs of a CI workflow run in: options are those of `docker run`."""
    jobs = document.get("jobs")
    for job in jobs.values() if isinstance(jobs, Mapped) else ():
        container = job.get("container") if isinstance(job, Mapped) else None
        if not isinstance(container, Mapped) or "options" not in container:
            continue
        text = f"docker run {container['options']} {container.get('image')}"
        for command in parse_shell(text, container.at("options")):
            if launch := docker_launch(ShellUse(path=path, command=command)):
                yield replace(launch, what="the container of a CI job")
