"""Family `ci`: pipelines that build, test and push images: what they test, overwrite or guess."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from torchproof.audit.facts import ImageFacts, TextFile
from torchproof.audit.parsing.image_references import parse_reference
from torchproof.audit.parsing.manifests import Mapped, scalars, strings, walk
from torchproof.audit.parsing.texts import ShellUse, TextKind, kind_of, shell_uses, yaml_of
from torchproof.audit.parsing.words import expand, option_values
from torchproof.audit.rule import Rule, rules_of
from torchproof.model.results import Finding

ENGINES: Final = frozenset({"docker", "podman", "nerdctl", "buildah"})
LISTING: Final = re.compile(
    r"^(crane ls|crane tags|skopeo list-tags|regctl tag ls|oras repo tags)\b"
)
NEWEST: Final = frozenset({"tail", "head"})
PLATFORM_KEYS: Final = re.compile(r"\b(platform|arch|architecture|runner|target_arch)\b")


@dataclass(kw_only=True)
class _Seen:
    """Images that one file builds, pushes and runs: reference → line."""

    built: dict[str, int] = field(default_factory=dict)
    pushed: dict[str, int] = field(default_factory=dict)
    loaded: bool = False


def _words(use: ShellUse) -> tuple[str, ...]:
    return tuple(expand(word, use.variables) for word in use.command.words)


def tests_another_image(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a pipeline that builds an image and then tests what a registry has under its tag."""
    for text in facts.texts:
        if kind_of(text) not in (TextKind.YAML, TextKind.SHELL, TextKind.MAKEFILE):
            continue
        seen = _Seen()
        for line, words in _steps(text):
            action = words[1] if len(words) > 1 else ""
            if action in ("build", "buildx", "bud") and "push" not in words[1:3]:
                for tag in option_values(words, "-t", "--tag"):
                    seen.built.setdefault(tag, line)
                    if "--push" in words:
                        seen.pushed[tag] = line
            elif action == "push":
                seen.pushed |= {word: line for word in words[2:] if not word.startswith("-")}
            elif action == "pull":
                for word in words[2:]:
                    if word in seen.built and word not in seen.pushed:
                        yield rule.error(
                            f"{word} is built in line {seen.built[word]} and pulled here before it "
                            "is pushed: what runs next is the image that was published earlier",
                            where=f"{text.path}:{line}",
                        )


def _steps(text: TextFile) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield engine commands of a file; build steps of actions count as `docker build`."""
    found = [
        (use.command.line, _words(use)) for use in shell_uses(text) if use.command.name in ENGINES
    ]
    for document in yaml_of(text)[0]:
        for step in _build_actions(document):
            inputs = step.get("with")
            if not isinstance(inputs, Mapped):
                continue
            tags = [
                tag for value in strings(inputs.get("tags")) for tag in re.split(r"[\s,]+", value)
            ]
            push = ("--push",) if str(inputs.get("push", "")).lower() == "true" else ()
            options = tuple(word for tag in tags if tag for word in ("-t", tag))
            found.append((step.line, ("docker", "build", *options, *push)))
    yield from sorted(found)


def _build_actions(value: Any) -> Iterator[Mapped]:
    return (step for step in walk(value) if "docker/build-push-action" in str(step.get("uses", "")))


def overwritten_tag(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find jobs of several platforms that push one tag: the last one wins."""
    for text in facts.texts:
        for document in yaml_of(text)[0]:
            jobs = document.get("jobs")
            for name, job in jobs.items() if isinstance(jobs, Mapped) else ():
                if isinstance(job, Mapped):
                    yield from _job(rule, text.path, str(name), job)


def _job(rule: Rule, path: str, name: str, job: Mapped) -> Iterator[Finding]:
    strategy = job.get("strategy")
    matrix = strategy.get("matrix") if isinstance(strategy, Mapped) else None
    if matrix is None or not PLATFORM_KEYS.search(_flat(matrix)):
        return
    for step in _build_actions(job):
        inputs = step.get("with")
        if not isinstance(inputs, Mapped) or str(inputs.get("push", "")).lower() != "true":
            continue
        tags, outputs = _flat(inputs.get("tags")), _flat(inputs.get("outputs"))
        if "push-by-digest=true" in outputs or not tags:
            continue
        if "matrix." not in tags and "steps." not in tags:
            yield rule.error(
                f"job {name} pushes {tags.split()[0]} once a platform: the last one replaces the "
                "others under that tag",
                where=f"{path}:{inputs.at('tags')}",
            )


def _flat(value: Any) -> str:
    return " ".join(scalars(value))


def guessed_tag(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find scripts that take the first or last tag of a registry's unsorted list."""
    for text in facts.texts:
        listing, is_sorted = False, False
        for use in shell_uses(text):
            command = use.command
            words = " ".join((command.name, *command.args))
            if not command.piped:
                listing = bool(LISTING.match(words)) or (
                    command.name in ("curl", "wget") and "/tags/list" in words
                )
                is_sorted = False
                continue
            if command.name == "sort":
                is_sorted = any(
                    re.match(r"-\w*V|--version-sort|--sort=version", word) for word in command.args
                )
            if listing and not is_sorted and command.name in NEWEST:
                listing = False
                yield rule.error(
                    f"`{command.name}` of a registry's tag list is not the newest tag: the list "
                    "has no order",
                    where=use.where,
                )


def many_pulls(rule: Rule, facts: ImageFacts) -> Iterator[Finding]:
    """Find a matrix of jobs that each pull from Docker Hub without logging in."""
    for text in facts.texts:
        for document in yaml_of(text)[0]:
            jobs = document.get("jobs")
            for name, job in jobs.items() if isinstance(jobs, Mapped) else ():
                strategy = job.get("strategy") if isinstance(job, Mapped) else None
                if not isinstance(strategy, Mapped) or "matrix" not in strategy:
                    continue
                flat = _flat(job)
                logs_in = "docker/login-action" in flat or re.search(
                    r"\b(docker|podman) login\b", flat
                )
                hub = _pulls_from_hub(flat)
                if hub and not logs_in and "max-parallel" not in strategy:
                    yield rule.warning(
                        f"every job of {name} pulls {hub} from Docker Hub without a login: a wide "
                        "matrix ends with 429 Too Many Requests",
                        where=f"{text.path}:{jobs.at(name) if isinstance(jobs, Mapped) else 1}",
                    )


def _pulls_from_hub(text: str) -> str:
    for match in re.finditer(r"\b(?:docker|podman) pull (?:-q )?(\S+)", text):
        reference = parse_reference(match[1].strip("'\""))
        first = reference.repository.split("/")[0] if reference else "."
        if reference and "." not in first and ":" not in first and not reference.local:
            return reference.text
    return ""


RULES: Final = rules_of(
    "ci",
    (
        "tests-another-image",
        tests_another_image,
        "The pipeline is green, and the image that it built was never tested.",
        "run the image by the digest of this build (docker buildx build --load, or push by digest)",
        "pytorch/pytorch#170252",
    ),
    (
        "overwritten-tag",
        overwritten_tag,
        "A tag that served amd64 and arm64 suddenly serves one of them.",
        "push by digest and make the index in one job (docker buildx imagetools create)",
        "PrimeIntellect-ai/prime-rl#2385, coreruleset/modsecurity-crs-docker#447",
    ),
    (
        "guessed-tag",
        guessed_tag,
        "An old image is used for months without anyone noticing.",
        "pin a version; to choose by version use `sort -V`, and write the result down",
        "llm-d/llm-d-benchmark#1573",
    ),
    (
        "rate-limit",
        many_pulls,
        "Builds fail at random with 429.",
        "log in, use a mirror, resolve the base once and pass its digest, or set max-parallel",
        "rapidsai/ci-imgs#427",
    ),
)
