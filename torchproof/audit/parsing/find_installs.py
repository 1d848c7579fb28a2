"""What install commands install, and from where: pip, uv, conda, apt, requirements. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from packaging.utils import canonicalize_name

from torchproof.audit.facts import ImageFacts, TextFile
from torchproof.audit.parsing.install_request import TORCH_FAMILY, Install
from torchproof.audit.parsing.projects import project_installs
from torchproof.audit.parsing.texts import ShellUse, TextKind, kind_of, shell_uses
from torchproof.audit.parsing.words import expand

_INDEX = ("-i", "--index-url", "--default-index", "--pypi-url")
_EXTRA = ("--extra-index-url", "--index")
_FILES = ("-r", "--requirement", "--requirements")
_CONSTRAINTS = ("-c", "--constraint", "--constraints", "--build-constraint", "--override")
_VALUED = frozenset(
    {
        *_INDEX,
        *_EXTRA,
        *_FILES,
        *_CONSTRAINTS,
        *("-e", "--editable", "-f", "--find-links", "-t", "--target", "--prefix", "--root", "-C"),
        *("--platform", "--python-platform", "--python-version", "--implementation", "--abi", "-p"),
        *("--cache-dir", "--timeout", "--retries", "--proxy", "--cert", "--trusted-host", "--src"),
        *("--only-binary", "--no-binary", "--progress-bar", "--report", "--log", "--python", "-o"),
        *("--upgrade-strategy", "--config-settings", "--global-option", "--index-strategy", "-d"),
        *("--torch-backend", "--extra", "--group", "--link-mode", "--resolution", "--prerelease"),
        *("--exclude-newer", "--keyring-provider", "--directory", "--project", "--output-file"),
        *("--no-build-isolation-package", "--reinstall-package", "--refresh-package"),
        *(
            "-n",
            "--name",
            "--channel",
            "--file",
            "--solver",
            "--target-release",
            "--option",
            "--dest",
        ),
        *("--allow-insecure-host", "--config-file", "--no-install-package", "-P", "--package"),
    }
)


def installs(facts: ImageFacts) -> tuple[Install, ...]:
    """Return every install of every text; ask for it by `facts.derived(installs)`."""
    return tuple(install for text in facts.texts for install in installs_of(text))


@lru_cache(maxsize=256)
def installs_of(text: TextFile) -> tuple[Install, ...]:
    """Return every install of one text."""
    match kind_of(text):
        case TextKind.REQUIREMENTS:
            return (_of_requirements(text),)
        case TextKind.PROJECT:
            return project_installs(text)
        case _:
            pass
    return tuple(install for use in shell_uses(text) if (install := _of_command(use)))


def _of_requirements(text: TextFile) -> Install:
    """Read a requirements file as one install; its line is that of the first torch, else 1."""
    requirements: list[str] = []
    words: list[str] = []
    line = 0
    joined = re.sub(r"\\\n", "  ", text.text)
    for number, raw in enumerate(joined.split("\n"), start=1):
        plain = re.sub(r"(^|\s)#.*", "", raw).strip()
        if plain.startswith("-"):
            words += re.split(r"[\s=]+", plain, maxsplit=1)
        elif plain:
            requirements.append(re.split(r"\s+--\w", plain)[0].strip())
            named = re.match(r"[\w.-]+", plain)
            if not line and named and canonicalize_name(named.group()) in TORCH_FAMILY:
                line = number
    options = _options(words)
    return Install(
        tool="requirements",
        verb="install",
        path=text.path,
        line=line or 1,
        requirements=tuple(requirements),
        files=options.values(*_FILES),
        constraints=options.values(*_CONSTRAINTS),
        index=options.last(*_INDEX),
        index_written=options.last(*_INDEX),
        extra=options.values(*_EXTRA),
        options=tuple(options.written),
    )


@dataclass(frozen=True, kw_only=True)
class _Options:
    pairs: tuple[tuple[str, str], ...]
    positional: tuple[str, ...]
    written: tuple[str, ...]

    def values(self, *names: str) -> tuple[str, ...]:
        found = [value for name, value in self.pairs if name in names]
        return tuple(url for value in found for url in value.split())

    def last(self, *names: str) -> str:
        found = [value for name, value in self.pairs if name in names]
        return found[-1] if found else ""


def _options(words: Iterable[str]) -> _Options:
    pairs: list[tuple[str, str]] = []
    positional: list[str] = []
    written: list[str] = []
    waiting = ""
    for word in words:
        if waiting:
            pairs.append((waiting, word))
            waiting = ""
        elif word.startswith("--"):
            written.append(word)
            name, given, value = word.partition("=")
            if given:
                pairs.append((name, value))
            elif name in _VALUED:
                waiting = name
        elif word.startswith("-") and len(word) > 1:
            written.append(word)
            if word[:2] in ("-r", "-c", "-i", "-f", "-e") and len(word) > 2 and word[2] != "-":
                pairs.append((word[:2], word[2:]))
            elif word in _VALUED:
                waiting = word
        else:
            positional.append(word)
    return _Options(pairs=tuple(pairs), positional=tuple(positional), written=tuple(written))


_PIP_VERBS = frozenset({"install", "download", "wheel", "sync", "compile"})
_TOOLS: Mapping[str, tuple[str, frozenset[str]]] = {
    "conda": ("conda", frozenset({"install", "create", "update", "upgrade"})),
    "mamba": ("conda", frozenset({"install", "create", "update", "upgrade"})),
    "micromamba": ("conda", frozenset({"install", "create", "update", "upgrade"})),
    "apt": ("apt", frozenset({"install", "upgrade", "dist-upgrade", "full-upgrade", "update"})),
    "apt-get": ("apt", frozenset({"install", "upgrade", "dist-upgrade", "update"})),
    "uv": ("uv", frozenset({"add", "sync", "run", "lock"})),
}


def _of_command(use: ShellUse) -> Install | None:
    tool, verb, words = _recognise(use.command.words)
    if not tool:
        return None
    options = _options(words)
    variables = use.variables
    index_written = options.last(*_INDEX) or _from_env(tool, variables, main=True)
    extra = options.values(*_EXTRA) or tuple(_from_env(tool, variables, main=False).split())
    positional = options.positional
    if tool == "uv" and verb == "run":
        positional = tuple(value for name, value in options.pairs if name == "--with")
    if tool == "conda" and verb == "create":
        positional = tuple(word for word in positional if word != "python")
    return Install(
        tool=tool,
        verb=verb,
        path=use.path,
        line=use.command.line,
        requirements=tuple(expand(word, variables) for word in positional),
        files=options.values(*_FILES, "--file"),
        constraints=options.values(*_CONSTRAINTS)
        or tuple(variables.get("PIP_CONSTRAINT", "").split() if tool == "pip" else ()),
        index=expand(index_written, variables),
        index_written=index_written,
        extra=tuple(expand(url, variables) for url in extra),
        options=options.written,
        use=use,
    )


def _recognise(words: tuple[str, ...]) -> tuple[str, str, tuple[str, ...]]:
    """Return (tool, verb, words behind the verb); the tool is "" for what installs nothing."""
    name = words[0].rsplit("/", maxsplit=1)[-1] if words else ""
    rest = words[1:]
    if re.fullmatch(r"python[\d.]*", name) and rest[:2] in (("-m", "pip"), ("-m", "uv")):
        name, rest = rest[1], rest[2:]
    if name == "uv" and "pip" in rest[:3]:
        at = rest.index("pip")
        tool, verbs, prefix = "uv", _PIP_VERBS, "pip "
        rest = (*rest[:at], *rest[at + 1 :])
    elif re.fullmatch(r"pip[\d.]*", name):
        tool, verbs, prefix = "pip", _PIP_VERBS, ""
    else:
        tool, verbs = _TOOLS.get(name, ("", frozenset()))
        prefix = ""
    plain = [word for word in rest if not word.startswith("-")]
    verb = next((word for word in plain[:2] if word in verbs), "")
    if not verb:
        return "", "", ()
    at = rest.index(verb)
    return tool, prefix + verb, (*rest[:at], *rest[at + 1 :])


def _from_env(tool: str, variables: Mapping[str, str], *, main: bool) -> str:
    """Return the index that environment variables give a tool (docs of pip and uv)."""
    if tool == "pip":
        names = ["PIP_INDEX_URL"] if main else ["PIP_EXTRA_INDEX_URL"]
    elif tool == "uv":
        names = ["UV_DEFAULT_INDEX", "UV_INDEX_URL"] if main else ["UV_INDEX", "UV_EXTRA_INDEX_URL"]
    else:
        return ""
    return next((variables[name] for name in names if variables.get(name)), "")


def with_files(install: Install, facts: ImageFacts) -> Install:
    """Add the requirements and indexes of the files that an install names, where they are known."""
    requirements, extra, index = list(install.requirements), list(install.extra), install.index
    for other in facts.derived(installs):
        if other.tool != "requirements" or not _names(install.files, other.path):
            continue
        requirements += other.requirements
        extra += other.extra
        index = index or other.index
    return replace(install, requirements=tuple(requirements), extra=tuple(extra), index=index)


def _names(files: Iterable[str], path: str) -> bool:
    name = path.rsplit("/", maxsplit=1)[-1]
    return any(file.rsplit("/", maxsplit=1)[-1] == name for file in files)
