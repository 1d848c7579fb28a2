"""lock → the text of `images/<cell>/`: a Dockerfile and one file of pinned wheels a layer. Pure.

Cells share a layer when its instruction, its file and all below are equal, byte for byte: so a
layer's step names nothing of its cell.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from torchproof.errors import InputError
from torchproof.image.config import TITLE_LABEL, Directory, image_config
from torchproof.image.layers import PREFIX, Layer, make_plan
from torchproof.model.digests import canonical_json
from torchproof.model.lock import WHEELHOUSE, LayerName, Lock, LockedBase, LockedWheel

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""Where Debian and Ubuntu keep the CA bundle; the build secret `ca` is mounted over it."""

_PACKAGE = Path(__file__).parents[1]
_TEMPLATES = (_PACKAGE / "templates", _PACKAGE.parent / "images" / "templates")
"""Inside an installed package; in a checkout."""
_COMMENTS = {
    LayerName.CUDA: "NVIDIA's CUDA libraries but cuDNN and NCCL",
    LayerName.CUDNN: "cuDNN",
    LayerName.TORCH: "PyTorch, Triton and what they import",
    LayerName.NCCL: "NCCL",
    LayerName.EXTRAS: "further packages",
}


def render(lock: Lock) -> Mapping[str, str]:
    """Return file name → text of `images/<cell>/`, without the lock.

    Raises InputError for a value that a Dockerfile cannot hold.
    """
    plan = make_plan(lock)
    config = image_config(lock, plan)
    installed = [layer for layer in plan.layers if layer.wheels]
    dockerfile = _environment().get_template("Dockerfile.j2")
    text = dockerfile.render(
        title=config.labels[TITLE_LABEL],
        base=base_ref(lock.base, lock.platform),
        is_image=lock.base.image is not None,
        packages=_words(lock.base.packages) if lock.base.image else (),
        python=_words((lock.python,))[0],
        prefix=PREFIX,
        ca=CA_BUNDLE,
        layers=[_step(layer) for layer in installed],
        passwd=f"'{config.passwd}'",
        directories=[_install(directory) for directory in config.directories],
        env=[f"{name}={quote(value)}" for name, value in config.env.items()],
        labels=[f"{name}={quote(value)}" for name, value in config.labels.items()],
        workdir=config.workdir,
        user=config.user,
        entrypoint=json.dumps(list(config.entrypoint)),
        cmd=json.dumps(list(config.cmd)),
    )
    files = {"Dockerfile": text, "uv.txt": _template_text("uv.txt")}
    files |= {f"{layer.name}.txt": requirements(layer.wheels) for layer in installed}
    return files


def requirements(wheels: tuple[LockedWheel, ...]) -> str:
    """Return a requirements file that allows these wheels and no others."""
    return "".join(
        f"{_words((wheel.name,))[0]}=={_words((wheel.version,))[0]} \\\n"
        f"    --hash=sha256:{_words((wheel.sha256,))[0]}\n"
        for wheel in wheels
    )


def base_ref(base: LockedBase, platform: str) -> str:
    """Return what follows FROM: the image pinned by digest, or the tag of a made base.

    The tag of a made base names its recipe. The registry `localhost` keeps an engine that lacks
    the image from asking a public registry for a stranger's.
    """
    if base.image:
        if not re.fullmatch(r"[\w./:-]+@sha256:[0-9a-f]{64}", base.image):
            raise InputError(
                f"the base image {base.image!r} is not pinned by digest",
                fix="write it as name@sha256:…",
            )
        return base.image
    import_key = canonical_json(base) + platform
    return f"localhost/torchproof/base:{_slug(base.bootstrap or '')}-{_short(import_key)}"


def quote(value: str) -> str:
    """Return a value as a double-quoted Dockerfile word: no variable or escape in it is expanded.

    Raises InputError for line breaks and other control characters.
    """
    if any(ord(character) < 32 for character in value):
        raise InputError(f"{value!r} cannot be in a Dockerfile: it has control characters")
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _step(layer: Layer) -> dict[str, str]:
    wheels, size = len(layer.wheels), layer.download_bytes / 1e6
    own = any(wheel.index == WHEELHOUSE for wheel in layer.wheels)
    return {
        "name": layer.name,
        "comment": f"{_COMMENTS[layer.name]} ({wheels} wheels, {size:,.1f} MB)".replace(
            "(1 wheels", "(1 wheel"
        ),
        "file": f"{layer.name}.txt",
        "digest": _short(requirements(layer.wheels)),
        "wheelhouse": WHEELHOUSE if own else "",
    }


def _install(directory: Directory) -> str:
    owner = f"--owner={directory.uid} --group={directory.gid}"
    return f"install --directory {owner} --mode={directory.mode:04o} {directory.path}"


def _words(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return values that need no quoting in a shell; anything else is refused."""
    for value in values:
        if not re.fullmatch(r"[A-Za-z0-9][\w.+:~!=-]*", value):
            raise InputError(f"{value!r} cannot be in a Dockerfile")
    return values


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "base"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def _template_text(name: str) -> str:
    return _environment().get_template(name).render()
