"""A machine that images are meant for, as `hosts:` of matrix.yaml declares it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredHost:
    """One kind of machine. What is not declared is empty, and is not judged.

    `driver` is the version of its NVIDIA driver, `gpu` a model (`H100`) or an architecture
    (`sm_90`), `count` the number of GPUs.
    """

    name: str
    driver: str = ""
    gpu: str = ""
    count: int = 1
