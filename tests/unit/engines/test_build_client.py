"""Which of the programs on PATH can build: small programs answer as real clients do."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchproof.engines.build_client import find_build_client
from torchproof.errors import HostError

NO_BUILDX = '[ "$1" = buildx ] && exit 1\n'
NO_BUILDKIT = NO_BUILDX + 'echo "BuildKit is missing or broken" >&2; exit 1\n'
BUILDKIT = NO_BUILDX + '[ "$DOCKER_BUILDKIT" = 1 ] && echo sha256:1 && exit 0\nexit 9\n'
BUILDX = '[ "$1" = buildx ] && echo sha256:1 && exit 0\nexit 9\n'


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    return tmp_path


def put(path: Path, name: str, script: str) -> str:
    path.parent.mkdir(exist_ok=True)
    file = path.parent / name
    file.write_text(f"#!/bin/sh\n{script}")
    file.chmod(0o755)
    return str(file)


def test_a_client_without_buildkit_is_passed_over(path: Path) -> None:
    put(path / "first/x", "docker", NO_BUILDKIT)
    wanted = put(path / "second/x", "docker", BUILDKIT)
    client = find_build_client(podman=False, address=None)
    assert (client.program, client.env) == (wanted, {"DOCKER_BUILDKIT": "1"})


def test_buildx_is_used_where_it_answers(path: Path) -> None:
    put(path / "first/x", "docker", BUILDX)
    client = find_build_client(podman=False, address=None)
    assert client.arguments[:2] == ("buildx", "build")


def test_no_builder_says_what_each_candidate_answered(path: Path) -> None:
    first = put(path / "first/x", "docker", NO_BUILDKIT)
    with pytest.raises(HostError, match="BuildKit is missing or broken") as caught:
        find_build_client(podman=False, address=None)
    assert first in str(caught.value)


def test_no_docker_at_all_says_so(path: Path) -> None:
    with pytest.raises(HostError, match="there is none"):
        find_build_client(podman=False, address=None)


def test_podmans_socket_needs_podmans_program(path: Path) -> None:
    with pytest.raises(HostError, match="needs the podman program"):
        find_build_client(podman=True, address="unix:///run/p")
    wanted = put(path / "first/x", "podman", "exit 0\n")
    client = find_build_client(podman=True, address="unix:///run/p")
    assert (client.program, client.arguments[:2]) == (wanted, ("--url", "unix:///run/p"))


def test_a_builder_that_loses_stages_gets_the_installer_as_an_image(path: Path) -> None:
    put(path / "first/x", "podman", "exit 0\n")
    client = find_build_client(podman=True, address=None)
    stage, image = client.commands(
        path,
        tag="cell",
        installer="installer",
        platform="linux/arm64",
        network="host",
        secrets={"ca": Path("/ca.pem")},
        build_args=["HTTP_PROXY"],
    )
    assert "--tag=installer" in stage and "--target=installer" in stage
    assert "--build-context=installer=container-image://installer" in image
    for command in (stage, image):
        assert {"--platform=linux/arm64", "--network=host", "--build-arg=HTTP_PROXY"} <= {*command}
        assert "--secret=id=ca,src=/ca.pem" in command
