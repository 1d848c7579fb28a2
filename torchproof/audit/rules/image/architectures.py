"""Family `architectures`: device code in the libraries, against the GPUs it has to run on."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from torchproof.assemble.layer.fatbin import sort_architectures
from torchproof.assemble.layer.slim import serves
from torchproof.audit.facts import ImageFacts
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.platforms import AMD64
from torchproof.model.results import Finding
from torchproof.upstream.driver_rules import will_it_run
from torchproof.upstream.facts import load_facts
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import HostAnswer, HostRule, ImageNeeds, parse_driver

TORCH_CODE: Final = ("libtorch_cuda.so", "libtorch_cuda_linalg.so")
"""torch's own kernels: what these lack, torch lacks."""
_GPU: Final = re.compile(r"sm_\d{2,3}")


def torch_archs(facts: ImageFacts) -> tuple[str, ...]:
    """Return the architectures of libtorch_cuda as its fatbins say; empty without it."""
    for entry in facts.regular(lambda name: name == TORCH_CODE[0]):
        return facts.detail(entry).archs
    return ()


def needs_of(facts: ImageFacts) -> ImageNeeds | None:
    """Return what decides on which hosts the image runs; None if it has no torch with CUDA."""
    if not facts.cuda or not facts.cuda.startswith("cu") or len(facts.cuda) < 5:
        return None
    return ImageNeeds(
        cell=facts.lock.cell if facts.lock else facts.name,
        cuda=facts.cuda,
        platform=facts.config.platform if facts.config else AMD64,
        archs=torch_archs(facts),
        archs_from="libtorch_cuda.so has",
    )


def host_answers(facts: ImageFacts) -> tuple[tuple[str, str, HostAnswer], ...]:
    """Return (host, GPU, answer) of every declared host; ask for it by `facts.derived`.

    Raises InputError for a GPU that is not known.
    """
    needs = needs_of(facts)
    if needs is None:
        return ()
    upstream, table = load_facts(), gpu_table()
    return tuple(
        (
            host.name,
            host.gpu,
            will_it_run(
                needs,
                parse_driver(host.driver) if host.driver else None,
                table.find(host.gpu) if host.gpu else None,
                upstream,
            ),
        )
        for host in facts.hosts
    )


def hosts_without_code(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find declared GPUs that no code in the image runs on.

    A matrix may declare hosts that other cells are for: an error is an image that fits no host.
    """
    answers = facts.derived(host_answers)
    report = rule.note if any(answer.runs for _, _, answer in answers) else rule.error
    for host, gpu, answer in answers:
        if not answer.runs and answer.rule is HostRule.DEVICE_CODE and "no device" in answer.reason:
            yield report(
                f"host {host}: torch {facts.torch.torch_version if facts.torch else ''} cannot run "
                f"on {gpu}: {answer.reason}",
                where=_place(facts),
                fix="; ".join(answer.change),
            )


def slim_code(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find libraries of a slim image that lack code for a GPU that it was made for.

    Without torch's own code nothing runs. Another library that has code for other GPUs alone was
    made for those. Slimming keeps all that a GPU can run, so one without any code had none for it
    in its wheel either, and only what calls it fails.
    """
    asked = facts.lock.gpus if facts.lock else _label(facts, "torchproof.gpus")
    known = [arch for arch in asked if _GPU.fullmatch(arch)]
    for path in facts.elves if known else ():
        found = facts.read(path)
        if not found.archs and not found.emptied:
            continue
        name = posixpath.basename(path)
        report = rule.warning if found.archs else rule.note
        report = rule.error if name in TORCH_CODE else report
        for arch in known:
            if not serves(found.archs, arch):
                has = f"code for {', '.join(found.archs)} alone" if found.archs else "none for it"
                yield report(
                    f"the image was made for {arch}, but {name} has {has}",
                    where=path,
                )


def published_code(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Note where the wheel's device code is not what upstream is known to publish."""
    lock, found = facts.lock, torch_archs(facts)
    if lock is None or not lock.archs or not found or lock.gpus:
        return
    lacking = sort_architectures(set(lock.archs) - set(found))
    if lacking:
        yield rule.note(
            f"libtorch_cuda.so has no code for {', '.join(lacking)}, which this build is known "
            "to be published with",
            where=_place(facts),
        )


def wrong_machine(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find torch libraries of another machine than the image."""
    machine = facts.config.machine if facts.config else None
    if machine is None or facts.torch is None:
        return
    for path, elf in facts.elves.items():
        if path.startswith(f"{facts.torch.site}/torch/lib/") and elf.machine != machine:
            yield rule.error(
                f"{posixpath.basename(path)} is for {elf.machine}, the image says "
                f"{facts.config.platform if facts.config else ''}",
                where=path,
            )
            return


def _label(facts: ImageFacts, name: str) -> tuple[str, ...]:
    value = facts.config.labels.get(name, "") if facts.config else ""
    return tuple(part for part in value.split(",") if part)


def _place(facts: ImageFacts) -> str:
    return next((path for path in facts.elves if path.endswith("/" + TORCH_CODE[0])), "")


RULES: Final = rules_of(
    "architectures",
    (
        "hosts",
        hosts_without_code,
        '"no kernel image is available for execution on the device" at the first kernel.',
        "take a build of torch with code for that GPU (`python build.py pick`)",
        "pytorch/pytorch#31285, #175253; unslothai/unsloth#5876; Kaggle/kaggle-cli#1151",
    ),
    (
        "slim",
        slim_code,
        'A slim image without code for its GPU: "CUDA error: unknown error".',
        "build the cell again with the architecture in `gpus:`",
        "measured: libraries pruned to another architecture",
    ),
    (
        "published",
        published_code,
        "GPUs that a build is said to run on are not served by this wheel.",
        "trust the files: `python build.py pick` reads them",
        "CUDA C++ Programming Guide, binary and PTX compatibility",
    ),
    (
        "machine",
        wrong_machine,
        "Libraries for another processor cannot be loaded.",
        "build the image for its own platform, without emulated copies of another",
        "OCI image specification, platform",
    ),
)
