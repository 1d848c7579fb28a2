from __future__ import annotations

from importlib import resources

import pytest
import yaml
from packaging.version import Version

from torchproof.model.versions import cuda_version
from torchproof.upstream.facts import load_facts

FACTS = load_facts()
FILES = [
    file
    for file in resources.files("torchproof.upstream").joinpath("data").iterdir()
    if file.name in ("upstream.yaml", "drivers.yaml", "indexes.yaml", "bases.yaml")
]


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        found = [key for item in value.values() for key in _keys(item)]
        for name in ("sources", "pins_from"):
            if isinstance(value.get(name), list):
                found += value[name]
        return found
    return [key for item in value for key in _keys(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_source_that_is_cited_is_spelled_out(file: object) -> None:
    data = yaml.safe_load(file.read_text())  # type: ignore[attr-defined]
    cited = set(_keys(data)) | set(data.get("release_matrix", {}).values())
    assert cited
    assert cited <= set(data["sources"])


def test_every_build_has_a_source_a_platform_and_a_driver() -> None:
    for release in FACTS.releases.values():
        for build in release.builds.values():
            assert build.sources
            assert build.platforms
            assert FACTS.driver_floor(build.cuda)
            assert cuda_version(build.cuda) in FACTS.toolkit_driver


def test_the_default_build_of_each_release_exists() -> None:
    for release in FACTS.releases.values():
        assert release.default["linux/amd64"] in release.builds


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        ("cu118", "450.80.02"),
        ("cu121", "525.60.13"),
        ("cu129", "525.60.13"),
        ("cu130", "580.65.06"),
    ],
)
def test_the_driver_floor_is_that_of_the_major_version(cuda: str, driver: str) -> None:
    assert FACTS.driver_floor(cuda) == driver


def test_a_newer_toolkit_never_shipped_with_an_older_driver() -> None:
    drivers = [
        Version(FACTS.toolkit_driver[version])
        for version in sorted(FACTS.toolkit_driver, key=Version)
    ]
    assert drivers == sorted(drivers)


def test_a_patch_newer_than_the_data_stands_on_its_sibling() -> None:
    release = FACTS.release("2.9.7")
    assert release is not None
    assert release.version == "2.9.1"
    assert FACTS.release("9.9.9") is None


def test_volta_is_in_cu126_but_not_in_cu128_of_27() -> None:
    builds = FACTS.releases["2.7.1"].builds
    assert "sm_70" in builds["cu126"].archs
    assert "sm_70" not in builds["cu128"].archs
    assert "compute_120" in builds["cu128"].archs
