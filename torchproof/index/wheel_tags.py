"""Which wheels fit a target: its tags, best first. Pure."""

from __future__ import annotations

from packaging.tags import Tag, compatible_tags, cpython_tags

from torchproof.model.platforms import machine_of


def target_tags(python: str, platform: str) -> list[Tag]:
    """Return the wheel tags of a target, best first (glibc 2.28, as torch asks)."""
    version = tuple(map(int, python.split(".")))
    machine = machine_of(platform)
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 16, -1)]
    platforms.append(f"manylinux2014_{machine}")
    if machine == "x86_64":
        platforms += [f"manylinux_2_{minor}_{machine}" for minor in range(16, 4, -1)]
        platforms += [f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    platforms.append(f"linux_{machine}")
    interpreter = f"cp{version[0]}{version[1]}"
    return [
        *cpython_tags(version, abis=[interpreter], platforms=platforms),
        *compatible_tags(version, interpreter, platforms),
    ]
