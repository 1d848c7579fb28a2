"""Debian's docker-registry on loopback, with and without basic auth, each in its own folder."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

USER, PASSWORD = "publisher", "correct-horse-battery"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRegistry:
    """A registry: `host` is `127.0.0.1:PORT`, `storage` its files."""

    host: str
    storage: Path
    log: Path


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def running_registry(
    folder: Path, *, auth: bool = False, delete: bool = False
) -> Iterator[RunningRegistry]:
    """Start a registry, wait until it answers, stop it by its own process at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    storage, log, port = folder / "storage", folder / "registry.log", free_port()
    config = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": str(storage)},
            "delete": {"enabled": delete},
        },
        "http": {"addr": f"127.0.0.1:{port}", "secret": "for-tests"},
    }
    if auth:
        passwords = folder / "htpasswd"
        line = subprocess.run(
            ["htpasswd", "-Bbn", USER, PASSWORD], capture_output=True, text=True, check=True
        )
        passwords.write_text(line.stdout)
        config["auth"] = {"htpasswd": {"realm": "tests", "path": str(passwords)}}
    path = folder / "config.yml"
    path.write_text(json.dumps(config))  # JSON is YAML
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(path)], stdout=out, stderr=out, env={**os.environ}
        )
    try:
        _await(f"http://127.0.0.1:{port}/v2/", process, log)
        yield RunningRegistry(host=f"127.0.0.1:{port}", storage=storage, log=log)
    finally:
        process.terminate()
        process.wait(timeout=20)


def docker_config(folder: Path, host: str, *, password: str = PASSWORD) -> Path:
    """Write what `docker login` leaves; the folder is for DOCKER_CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    pair = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    return folder


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            if httpx.get(url, timeout=1).status_code in (200, 401):
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"docker-registry did not start: {log.read_text()[-2000:]}")
