"""What an image carries, read from its layers; layers that cannot be trusted are refused."""

from __future__ import annotations

import gzip
from functools import partial

import pytest

from tests.madeimages import image_layers, layer_tar, made_lock
from torchproof.errors import CellError
from torchproof.image.stored_image import Image, LayerSource
from torchproof.publish.image_check import Inside, look_inside

SITE = "opt/venv/lib/python3.11/site-packages"


def inside(*tars: bytes) -> Inside:
    layers = (LayerSource(diff_id="sha256:x", open=partial(iter, (tar,))) for tar in tars)
    return look_inside(Image(config=b"{}", layers=tuple(layers)))


@pytest.mark.parametrize("packed", [False, True])
def test_versions_are_those_of_the_files(packed: bool) -> None:
    layers = [gzip.compress(tar) if packed else tar for tar in image_layers(made_lock())]
    found = inside(*layers)
    assert (found.torch, found.cuda, found.python) == ("2.9.1", "12.8", "3.11")
    assert found.packages == (("libc6", "2.36-9", "amd64"),)


@pytest.mark.parametrize(
    "name",
    [
        f"{SITE}/.wh.torch-2.9.1.dist-info",
        f"{SITE}/torch-2.9.1.dist-info/.wh..wh..opq",
        "opt/.wh.venv",
    ],
)
def test_what_an_upper_layer_removes_is_not_in_the_image(name: str) -> None:
    assert inside(*image_layers(made_lock()), layer_tar({name: ""})).torch == ""


def test_what_stands_beside_an_opaque_mark_stays() -> None:
    upper = {f"{SITE}/.wh..wh..opq": "", f"{SITE}/torch-2.8.0.dist-info/METADATA": ""}
    found = inside(*image_layers(made_lock()), layer_tar(upper))
    assert found.distributions == (("torch", "2.8.0"),)


def test_a_name_that_climbs_out_is_refused() -> None:
    climbing = layer_tar({f"../{SITE}/torch-2.9.1.dist-info/METADATA": ""})
    with pytest.raises(CellError, match=r"climbs out") as error:
        inside(*image_layers(made_lock()), climbing)
    assert error.value.where == "layer 4 (sha256:x)"


@pytest.mark.parametrize("keep", [0, 100, 600])
def test_a_damaged_layer_is_refused(keep: int) -> None:
    with pytest.raises(CellError, match="layer 1"):
        inside(gzip.compress(image_layers(made_lock())[0], 0)[:keep])
