"""NVIDIA_REQUIRE_CUDA: the conditions under which NVIDIA's container runtime starts an image. Pure.

Source: NVIDIA container toolkit, environment variables (constraints).
"""

from __future__ import annotations

import re
from typing import Final

from packaging.version import InvalidVersion, Version

from torchproof.errors import InputError
from torchproof.model.declared_host import DeclaredHost
from torchproof.upstream.facts import load_facts
from torchproof.upstream.gpus import gpu_table
from torchproof.upstream.host_fit import parse_driver

CONDITION: Final = re.compile(r"(cuda|driver|arch|brand)(>=|<=|!=|=|>|<)(\S+)")
BRANDS: Final = {"data-center": "tesla", "geforce": "geforce", "workstation": "quadro"}
"""Kinds of gpus.yaml → what the NVIDIA runtime calls the brand."""


def admits(wanted: str, host: DeclaredHost) -> bool:
    """Tell whether a host meets one of the alternatives (spaces are OR, commas AND).

    A condition that is not understood, or asks for what is unknown of the host, counts as met.
    """
    return any(
        all(_holds(condition, host) for condition in option.split(",") if condition)
        for option in wanted.split()
    )


def least_cuda(wanted: str) -> Version | None:
    """Return the lowest CUDA that a `cuda>=` of any alternative asks for; None if there is none."""
    asked = [
        Version(value)
        for name, operator, value in CONDITION.findall(wanted.replace(",", " "))
        if name == "cuda" and operator == ">=" and _is_version(value)
    ]
    return min(asked, default=None)


def _holds(condition: str, host: DeclaredHost) -> bool:
    match = CONDITION.fullmatch(condition)
    if match is None:
        return True
    name, operator, value = match.groups()
    if name == "brand":
        brand = _brand(host)
        return not brand or (brand == value) is (operator == "=")
    have = {"cuda": _cuda_of_driver(host.driver), "driver": host.driver}.get(name, "")
    if not have or not _is_version(value) or not _is_version(have):
        return True
    one, other = Version(have), Version(value)
    if name == "driver" and "." not in value:
        one = Version(have.split(".")[0])
    return {
        ">=": one >= other,
        "<=": one <= other,
        ">": one > other,
        "<": one < other,
        "=": one == other,
        "!=": one != other,
    }[operator]


def _brand(host: DeclaredHost) -> str:
    try:
        return BRANDS.get(gpu_table().find(host.gpu).kind, "") if host.gpu else ""
    except InputError:
        return ""


def _cuda_of_driver(text: str) -> str:
    """Return the newest CUDA that a driver brings: the one that the runtime compares."""
    driver = parse_driver(text)
    known = [
        cuda for cuda, needs in load_facts().toolkit_driver.items() if driver >= parse_driver(needs)
    ]
    return max(known, key=Version, default="")


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
