"""How long an audit takes, and how much memory: cold, then warm. `make bench`.

Audits an image of the engine (the first argument; else the largest of torchproof's), each time in a
process of its own. Fails if the warm audit takes 10 s or more, or 500 MB or more.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

import docker

from torchproof.engines.docker import REPOSITORY

SECONDS = 10.0
MEGABYTES = 500.0


def main() -> int:
    """Measure, print, and judge."""
    if sys.argv[1:2] == ["--once"]:
        return once(sys.argv[2])
    client = docker.from_env()
    images = client.images.list(*sys.argv[1:2]) or client.images.list(REPOSITORY)
    if not images:
        print("no image: name one, or run `make matrix` first")
        return 2
    image = max(images, key=lambda item: item.attrs["Size"])
    name = (image.tags or [image.id])[0]
    print(f"{name}: {image.attrs['Size'] / 1e9:.2f} GB, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="torchproof-bench-") as cache:
        environ = {**os.environ, "TORCHPROOF_CACHE": cache}
        for run in ("cold", "warm"):
            start = time.perf_counter()
            asked = [sys.executable, __file__, "--once", name]
            done = subprocess.run(asked, env=environ, capture_output=True, text=True, check=True)
            seconds, megabytes = time.perf_counter() - start, float(done.stdout)
            print(f"{run}: {seconds:.1f} s, {megabytes:.0f} MB")
    return 0 if seconds < SECONDS and megabytes < MEGABYTES else 1


def once(name: str) -> int:
    """Audit once; print the largest resident size in MB."""
    from torchproof.audit.run import audit_image

    audit_image(name)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return 0


if __name__ == "__main__":
    sys.exit(main())
