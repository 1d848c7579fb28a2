"""Family `base`: the image that a Dockerfile starts from, by what base_images.yaml knows of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from packaging.version import Version

from torchproof.audit.facts import ImageFacts
from torchproof.audit.parsing.dockerfile import Stage
from torchproof.audit.parsing.find_installs import installs, with_files
from torchproof.audit.parsing.image_references import Reference, base_images, parse_reference
from torchproof.audit.parsing.stages import stages
from torchproof.audit.parsing.texts import shell_uses
from torchproof.audit.parsing.words import option_values
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding


def floating(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find bases (and images copied from) that are not pinned by digest."""
    for path, stage in stages(facts):
        for line, written, reference in _external(facts, path, stage):
            where = f"{path}:{line}"
            if reference is None:
                if "$" in written:
                    yield rule.warning(
                        f"the base {written} is whatever a build argument says: it has no default",
                        where=where,
                        fix="give the ARG a default pinned by digest",
                    )
            elif reference.digest or reference.local:
                continue
            elif reference.floats:
                tag = reference.tag or "latest (no tag is written)"
                yield rule.error(
                    f"{reference.text} follows the tag {tag}: the next build may start from "
                    "another image",
                    where=where,
                )
            else:
                yield rule.warning(
                    f"{reference.text} is not pinned by digest: the tag can be pushed again with "
                    "other content (NVIDIA did so with a stricter NVIDIA_REQUIRE_CUDA)",
                    where=where,
                )


def _external(
    facts: ImageFacts, path: str, stage: Stage
) -> Iterator[tuple[int, str, Reference | None]]:
    names = {
        name
        for other_path, other in stages(facts)
        if other_path == path
        for name in (other.name.lower(), str(other.index))
    }
    if stage.parent is None:
        yield stage.line, stage.base, parse_reference(stage.base)
    for instruction, variables in stage.scopes():
        source = instruction.flag("from") if instruction.name in ("COPY", "ADD") else None
        if source and source.lower() not in names and "$" not in source:
            yield instruction.line, source, parse_reference(source)
        del variables


def deleted_tag(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find tags of nvidia/cuda that NVIDIA has deleted or never published."""
    known = base_images()["nvidia_cuda"]
    for path, stage in stages(facts):
        reference = parse_reference(stage.base)
        if stage.parent or reference is None or reference.digest:
            continue
        if reference.repository.removeprefix("nvcr.io/") != "nvidia/cuda" or not reference.version:
            continue
        reason, level = _gone(reference, known)
        if reason:
            make = rule.error if level == "error" else rule.warning
            yield make(f"{reference.text} {reason}", where=f"{path}:{stage.line}")


def _gone(reference: Reference, known: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a tag of nvidia/cuda cannot be pulled (or soon cannot), and the level."""
    version = reference.version
    oldest = Version(min(known["tags"], key=Version))
    if version is None or version < oldest:
        return (
            "no longer exists: NVIDIA deletes the tags of CUDA releases past their support "
            f"(the oldest known on {known['as_of']} is {oldest})"
        ), "error"
    minor = f"{version.major}.{version.minor}"
    tag = known["tags"].get(minor)
    cudnn = re.search(r"cudnn\d*", reference.tag)
    ubuntu = re.search(r"ubuntu(\d\d\.\d\d)", reference.tag)
    reason, level = "", ""
    if tag is None:
        pass
    elif version.micro < tag["patch"] and len(version.release) > 2:
        newest = f"{minor}.{tag['patch']}"
        reason = f"no longer exists: patch releases before {newest} are past their support"
        level = "error"
    elif cudnn and cudnn.group() != tag["cudnn"]:
        reason = f"does not exist: the flavour is spelled {tag['cudnn']} for CUDA {minor}"
        level = "error"
    elif ubuntu and ubuntu[1] not in tag["ubuntu"]:
        there = ", ".join(tag["ubuntu"])
        reason = f"was not published on {known['as_of']}: CUDA {minor} is there for Ubuntu {there}"
        level = "warning"
    elif version.major < known["oldest_supported_major"]:
        reason, level = "is past its support: NVIDIA deletes such tags", "warning"
    return reason, level


def no_such_platform(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find bases that are not published for the platform that is built."""
    built = _platforms_built(facts)
    for path, stage in stages(facts):
        reference = parse_reference(stage.base)
        if stage.parent or reference is None or reference.cuda is None:
            continue
        item = base_images()["platforms"].get(reference.repository)
        if item is None:
            continue
        written = [stage.platform] if stage.platform and "$" not in stage.platform else built
        for platform in written:
            if platform not in item["cuda_tags"]:
                yield rule.error(
                    f"{reference.text} has no {platform}: its CUDA tags are "
                    f"{', '.join(item['cuda_tags'])} only",
                    where=f"{path}:{stage.line}",
                    fix=f"use {item['other']}",
                )


def _platforms_built(facts: ImageFacts) -> list[str]:
    """Return the platforms that scripts and CI files beside the Dockerfile build for."""
    found: dict[str, None] = {}
    for text in facts.texts:
        for use in shell_uses(text):
            words = use.command.words
            if not words or not {"build", "bake"} & set(words[1:4]):
                continue
            for value in option_values(words, "--platform"):
                found |= {item: None for item in value.split(",") if "$" not in item and item}
    return list(found)


def revoked_key(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find `apt-get update` over a base whose CUDA repository is signed with the revoked key."""
    limits = base_images()["revoked_key_before"]
    for text in facts.texts:
        reported: set[int] = set()
        uses = [use for use in shell_uses(text) if use.stage >= 0]
        for use in uses:
            reference = parse_reference(use.base)
            limit = limits.get(reference.repository) if reference else None
            if reference is None or limit is None or use.stage in reported:
                continue
            if reference.version is None or reference.version >= Version(limit["version"]):
                continue
            words = " ".join(use.command.words)
            if re.search(
                r"(cuda|nvidia-ml)[\w*.-]*\.list|cuda-keyring|3bf863cc|sources\.list\.d", words
            ):
                reported.add(use.stage)
            elif use.command.name in ("apt", "apt-get") and "update" in use.command.words:
                reported.add(use.stage)
                yield rule.error(
                    f"{reference.text} has a CUDA apt repository signed with the revoked key "
                    "7fa2af80: `apt-get update` fails with NO_PUBKEY A4B469963BF863CC",
                    where=use.where,
                )
    yield from _key_in_image(rule, facts)


def _key_in_image(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    folder = "/etc/apt/sources.list.d"
    sources: dict[str, list[tuple[str, str]]] = {}
    for name in facts.listdir(folder):
        for line in (facts.text(f"{folder}/{name}") or "").splitlines():
            match = re.match(
                r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+developer\.download\.nvidia\S+)", line
            )
            if match:
                sources.setdefault(match[2].rstrip("/"), []).append((name, match[1] or ""))
    for url, found in sources.items():
        signed = {name: "signed-by" in options.lower() for name, options in found}
        if len(set(signed.values())) > 1:
            plain = next(name for name, by in signed.items() if not by)
            yield rule.error(
                f"{folder}/{plain} and another list name {url}, one with Signed-By and one "
                "without: `apt-get update` fails with conflicting values",
                where=f"{folder}/{plain}",
            )


def ngc_prerelease(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find installs that would replace the torch of NVIDIA's image, which is a pre-release."""
    for install in facts.derived(installs):
        reference = parse_reference(install.use.base) if install.use else None
        if reference is None or not reference.repository.endswith("nvidia/pytorch"):
            continue
        release = re.match(r"\d\d\.\d\d", reference.tag)
        theirs = base_images()["ngc_torch"].get(release.group() if release else "")
        for wanted in with_files(install, facts).torch_family():
            if wanted.name != "torch" or not wanted.specifier:
                continue
            if not theirs or not wanted.specifier.contains(Version(theirs), prereleases=True):
                what = f"has {theirs}" if theirs else "has a pre-release (2.x.0a0)"
                yield rule.error(
                    f"the install wants {wanted}; {reference.text} {what}, which is older by "
                    "PEP 440: the image's torch would be replaced",
                    where=install.where,
                )


RULES: Final = rules_of(
    "base",
    (
        "floating",
        floating,
        "The same Dockerfile gives a different image tomorrow, although no line changed.",
        "pin the base as name:tag@sha256:…",
        "NVIDIA/nvidia-container-toolkit#152, ray-project/ray#41080",
    ),
    (
        "deleted-tag",
        deleted_tag,
        'A build ends with "manifest unknown".',
        "use a supported patch release, or keep a mirror of the one you need",
        "NVIDIA/nvidia-docker#1768; NVIDIA container-images/cuda, doc/support-policy.md",
    ),
    (
        "platform",
        no_such_platform,
        "The base has no image for the platform: the build ends at FROM.",
        "choose another base for that platform",
        "NVIDIA-NeMo/labs-molt#122",
    ),
    (
        "apt-key",
        revoked_key,
        "`apt-get update` fails in every layer on that base.",
        "remove /etc/apt/sources.list.d/cuda.list and nvidia-ml.list first, or use a newer base",
        "NVIDIA, Updating the CUDA Linux GPG Repository Key (2022)",
    ),
    (
        "prerelease",
        ngc_prerelease,
        "A dependency replaces the torch that the image was chosen for.",
        "leave torch out of the requirements, and pass the image's own version as a constraint",
        "crickett-hpe/hpc-ai-envs#29, ai-dynamo/dynamo#2569",
    ),
)
