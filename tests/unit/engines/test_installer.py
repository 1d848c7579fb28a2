"""What an installer is told, and what its failures mean."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.image.test_dockerfile import LOCK
from torchproof.engines.installer import (
    IndexUrls,
    ca_bundle,
    install_failure,
    pip_config,
    uv_config,
)
from torchproof.errors import (
    CellError,
    HostError,
    IndexUnreachableError,
    IntegrityError,
    TorchproofError,
)

PROMISED, CAME = "a" * 64, "b" * 64
TORCH = next(wheel for wheel in LOCK.wheels if wheel.name == "torch")
PIN = f"torch=={TORCH.version}"

FAILURES: list[tuple[str, type[TorchproofError], str]] = [
    (
        f"  × Failed to download `{PIN}`\n  ╰─▶ Hash mismatch for `{PIN}`\n\n"
        f"      Expected:\n        sha256:{PROMISED}\n\n      Computed:\n        sha256:{CAME}\n",
        IntegrityError,
        f"{TORCH.filename} does not have the sha256 that the lock promises (promised {PROMISED}",
    ),
    (
        f"  × Failed to download `{PIN}`\n  ├─▶ Failed to extract archive: {TORCH.filename}\n"
        "  ╰─▶ unexpected end of file\n",
        IntegrityError,
        f"{TORCH.filename} cannot be unpacked",
    ),
    (
        f"  × Failed to download `{PIN}`\n  ╰─▶ No space left on device (os error 28)\n",
        HostError,
        "the disk is full",
    ),
    (
        "error: Failed to fetch: `https://user:secret@index.example/simple/torch/`\n"
        "  Caused by: error sending request\n  Caused by: dns error: Name or service not known\n",
        IndexUnreachableError,
        "does not answer",
    ),
    (
        f"  × No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of "
        f"{PIN} and you require {PIN}, we can conclude that your requirements are unsatisfiable.\n",
        CellError,
        f"{TORCH.filename} is not on its index (any more)",
    ),
    ("error: something nobody has seen\n", CellError, "something nobody has seen"),
]


@pytest.mark.parametrize(("output", "kind", "words"), FAILURES)
def test_a_failure_has_its_kind_and_names_what_is_at_fault(
    output: str, kind: type[TorchproofError], words: str
) -> None:
    error = install_failure(LOCK, f"Resolved 20 packages\n{output}")
    assert type(error) is kind
    assert words in str(error)
    assert LOCK.cell in str(error)
    assert error.fix


@pytest.mark.parametrize("output", [failure[0] for failure in FAILURES])
def test_no_failure_tells_a_password(output: str) -> None:
    assert "secret" not in str(install_failure(LOCK, output))


def test_the_wheel_named_first_is_the_one_at_fault() -> None:
    other = next(wheel for wheel in LOCK.wheels if wheel.name == "nvidia-nccl-cu12")
    output = f"error: Failed to unpack {other.name}=={other.version}, needed by {PIN}\n"
    assert other.filename in str(install_failure(LOCK, output))


urls = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=1)


@given(default=st.none() | urls, named=st.lists(urls, max_size=3))
def test_uv_reads_back_every_index_whatever_is_in_its_address(
    default: str | None, named: list[str]
) -> None:
    config = tomllib.loads(uv_config(IndexUrls(default=default, named=tuple(named))))
    indexes = config.get("index", [])
    assert [one["url"] for one in indexes if not one.get("default")] == named
    assert [one["url"] for one in indexes if one.get("default")] == ([default] if default else [])


@given(index=urls)
def test_pip_reads_back_the_index_whatever_is_in_its_address(index: str) -> None:
    parser = configparser.RawConfigParser()
    parser.read_string(pip_config(index).replace("%%", "%"))
    assert parser["global"]["index-url"] == index


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8080/simple", True),
        ("http://user:secret@localhost/simple", True),
        ("http://[::1]:80/simple", True),
        ("https://localhost.example/simple", False),
        ("https://127.example/simple", False),
        ("https://index.example/127.0.0.1", False),
    ],
)
def test_an_index_on_this_machine_is_known_by_its_address(url: str, loopback: bool) -> None:
    assert IndexUrls(default=None, named=(url,)).loopback is loopback


def test_the_certificates_named_by_the_environment_come_before_the_systems(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    assert ca_bundle({"PIP_CERT": str(bundle)}) == bundle
    assert ca_bundle({"PIP_CERT": str(tmp_path / "gone")}) != tmp_path / "gone"
