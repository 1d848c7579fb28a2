"""Which program can build images for an engine, found out by asking it to, not by its version.

A `docker` client may lack BuildKit while another one further down PATH has it; Podman's socket
builds only through the `podman` program.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchproof.errors import HostError

_TRIVIAL = "FROM scratch\nLABEL torchproof.question=can-this-client-build\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildClient:
    """A program that builds. `arguments` go before the build's own, `env` over the user's."""

    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str]
    parallel: bool
    """Whether builds at the same time share their equal steps."""
    loses_stages: bool = False
    """Cannot mount a stage that it takes from its cache (Buildah 1.28): it must be an image."""

    def commands(
        self,
        context: Path,
        *,
        tag: str,
        installer: str,
        platform: str | None,
        network: str | None,
        secrets: Mapping[str, Path],
        build_args: Sequence[str],
    ) -> list[list[str]]:
        """Return the commands that build a folder, in order.

        `build_args` are names of variables; `installer` is a tag for the stage of that name.
        """
        command = [self.program, *self.arguments]
        command += [f"--platform={platform}"] if platform else []
        command += [f"--network={network}"] if network else []
        command += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
        command += [f"--build-arg={argument}" for argument in build_args]
        last = [f"--tag={tag}", str(context)]
        if not self.loses_stages:
            return [[*command, *last]]
        stage = [*command, "--target=installer", f"--tag={installer}", str(context)]
        return [
            stage,
            [*command, f"--build-context=installer=container-image://{installer}", *last],
        ]


def find_build_client(*, podman: bool, address: str | None) -> BuildClient:
    """Return the first program that can build.

    `address` is the engine's socket (DOCKER_HOST), None for the default one. Raises HostError, with
    what every candidate said, if there is none.
    """
    if podman:
        return _podman(address)
    said = []
    for program in _programs("docker"):
        answer = _ask(program, ("buildx", "version"), {})
        plain = BuildClient(
            program=program,
            arguments=("build", "--progress=plain"),
            env={"DOCKER_BUILDKIT": "1"},
            parallel=True,
        )
        buildx = BuildClient(
            program=program,
            arguments=("buildx", "build", "--progress=plain", "--load"),
            env={},
            parallel=True,
        )
        client = buildx if answer.returncode == 0 else plain
        problem = _try(client)
        if not problem:
            return client
        said.append(f"{program}: {problem}")
    raise HostError(
        "no docker client here can build with BuildKit: " + ("; ".join(said) or "there is none"),
        fix="install docker-buildx, or a docker client that brings BuildKit along",
    )


def _podman(address: str | None) -> BuildClient:
    program = next(_programs("podman"), None)
    if program is None:
        raise HostError(
            "the engine is Podman, and building through its socket needs the podman program",
            fix="install podman on this machine, or use --builder assemble",
        )
    remote = ("--url", address) if address else ()
    return BuildClient(
        program=program,
        arguments=(*remote, "build", "--layers", "--format=docker"),
        env={},
        parallel=False,
        loses_stages=True,
    )


def _programs(name: str) -> Iterator[str]:
    seen = set()
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder) / name
        if path.is_file() and os.access(path, os.X_OK) and path.resolve() not in seen:
            seen.add(path.resolve())
            yield str(path)


def _try(client: BuildClient) -> str:
    """Build a trivial image with a secret; return what went wrong, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="torchproof-") as folder:
        context = Path(folder)
        (context / "Dockerfile").write_text(_TRIVIAL, encoding="utf-8")
        secret = f"--secret=id=none,src={context / 'Dockerfile'}"
        answer = _ask(
            client.program, (*client.arguments, "--quiet", secret, str(context)), client.env
        )
        if answer.returncode != 0:
            lines = [line for line in answer.stderr.splitlines() if line.strip()]
            return lines[0] if lines else f"exit code {answer.returncode}"
        _ask(client.program, ("rmi", "--force", answer.stdout.strip()), {})
        return ""


def _ask(
    program: str, arguments: Sequence[str], env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [program, *arguments],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(arguments, 1, "", str(error))
