"""Images of a few kilobytes that carry what a PyTorch image would: made by hand, never run."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from torchproof.image.config import image_config
from torchproof.image.layers import make_plan
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel
from torchproof.model.lock_file import lock_path, write_lock
from torchproof.registry import OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST
from torchproof.report.models import ReportModel

AT = "2026-11-30T12:00:00Z"
SUITE = "sha256:" + "5" * 64
CPU_HOST = {"engine": "docker 20.10.24", "driver": None, "gpus": []}
H100_HOST = {
    "engine": "docker 20.10.24",
    "driver": "550.90.07",
    "gpus": [{"model": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "memory_bytes": 85520809984}] * 2,
}
_SITE = "opt/venv/lib/python{python}/site-packages"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def made_lock(
    torch: str = "2.9.1", cuda: str = "cu128", python: str = "3.11", *, salt: str = ""
) -> Lock:
    """A lock with three wheels; `salt` makes another lock of the same versions."""

    def wheel(name: str, version: str, layer: LayerName) -> LockedWheel:
        return LockedWheel(
            name=name,
            version=version,
            filename=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
            sha256=hashlib.sha256(f"{name} {version} {salt}".encode()).hexdigest(),
            size=1000,
            index="pypi",
            layer=layer,
        )

    return Lock(
        cell=f"{torch}-{cuda}-py{python.replace('.', '')}",
        torch=torch,
        cuda=cuda,
        cudnn="9.10.2.21",
        nccl="2.27.5",
        triton=None,
        python=python,
        platform="linux/amd64",
        base=LockedBase(bootstrap="debian/bookworm"),
        wheels=(
            wheel("nvidia-cudnn-cu12", "9.10.2.21", LayerName.CUDNN),
            wheel("torch", torch, LayerName.TORCH),
            wheel("nvidia-nccl-cu12", "2.27.5", LayerName.NCCL),
        ),
        driver_floor="525.60.13",
    )


def layer_tar(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def image_layers(lock: Lock, *, salt: str = "") -> list[bytes]:
    """The tars of an image's layers: base packages, cuDNN, torch with NCCL."""
    site = _SITE.format(python=lock.python)
    digits = lock.cuda.removeprefix("cu")
    status = (
        "Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.36-9\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: amd64\nVersion: 1\n"
    )
    return [
        layer_tar({"var/lib/dpkg/status": status, "etc/salt": salt}),
        layer_tar({f"{site}/nvidia_cudnn_cu12-{lock.cudnn}.dist-info/METADATA": "cudnn"}),
        layer_tar(
            {
                f"{site}/torch-{lock.torch}.dist-info/METADATA": "torch",
                f"{site}/torch/version.py": (
                    f"__version__ = '{lock.torch}+{lock.cuda}'\n"
                    f"cuda: Optional[str] = '{digits[:-1]}.{digits[-1]}'\n"
                ),
                f"{site}/nvidia_nccl_cu12-{lock.nccl}.dist-info/METADATA": "nccl",
            }
        ),
    ]


def write_layout(
    folder: Path, lock: Lock, *, salt: str = "", layers: list[bytes] | None = None
) -> str:
    """Write an OCI layout of an image of a lock; return its manifest's digest."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, Any]:
        digest = digest_of(data)
        (blobs / digest.removeprefix("sha256:")).write_bytes(data)
        return {"digest": digest, "size": len(data)}

    tars = layers if layers is not None else image_layers(lock, salt=salt)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": "1980-01-01T00:00:00Z",
        "config": {"Labels": dict(image_config(lock, make_plan(lock)).labels)},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, **put(json.dumps(config).encode())},
        "layers": [
            {"mediaType": OCI_LAYER_GZIP, **put(gzip.compress(tar, mtime=0))} for tar in tars
        ],
    }
    described = put(json.dumps(manifest).encode())
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [{"mediaType": OCI_MANIFEST, **described}]}
    (folder / "index.json").write_text(json.dumps(index))
    return str(described["digest"])


def probe(name: str, outcome: str = "pass", host: dict[str, Any] = CPU_HOST) -> dict[str, Any]:
    return {"name": name, "outcome": outcome, "code": outcome, "seconds": 1.0, "host": host}


def report_cell(
    lock: Lock,
    ref: str,
    digest: str,
    *,
    verdict: str = "verified",
    reason: str = "",
    probes: list[dict[str, Any]] | None = None,
    at: str = AT,
    host: dict[str, Any] = CPU_HOST,
) -> dict[str, Any]:
    """A cell of report.json whose image is `ref` with `digest`."""
    ran = probes if probes is not None else [probe("torch_import"), probe("linkage")]
    return {
        "id": lock.cell,
        "torch": lock.torch,
        "cuda": lock.cuda,
        "cudnn": lock.cudnn,
        "nccl": lock.nccl,
        "python": lock.python,
        "verdict": verdict,
        "reason": reason or f"{len(ran)} probes",
        "lock_digest": lock.digest,
        "image": {"ref": ref, "digest": digest, "size_bytes": 1},
        "build": {"seconds": 1.0, "plan_hash": make_plan(lock).hash},
        "evidence": {
            "subject": "image",
            "digest": digest,
            "suite_hash": SUITE,
            "host": host,
            "at": at,
            "audited": True,
        },
        "policy": {"probes": [{"name": one["name"]} for one in ran]},
        "probes": ran,
    }


def made_report(*cells: dict[str, Any], at: str = AT) -> ReportModel:
    return ReportModel.model_validate(
        {
            "schema": "torchproof/report/1",
            "generated_at": at,
            "suite_hash": SUITE,
            "host": CPU_HOST,
            "cells": list(cells),
        }
    )


class Workshop:
    """A folder with layouts, locks and matrix.yaml, as a run of the matrix would leave them."""

    def __init__(self, folder: Path, registry: str, repository: str = "ai/torch") -> None:
        self.folder = folder
        self.images = folder / "images"
        self.reports = folder / "reports"
        self.matrix = folder / "matrix.yaml"
        self._count = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(registry, repository)

    def configure(self, registry: str, repository: str = "ai/torch", *accept: str) -> None:
        self.matrix.write_text(
            'torch: ["2.9.1"]\ncuda: [cu128]\npython: ["3.11"]\n'
            f"publish:\n  registry: '{registry}'\n  repository: {repository}\n"
            f"  accept_unproven: {json.dumps(list(accept))}\n"
        )

    def cell(self, lock: Lock, *, salt: str = "", **more: Any) -> dict[str, Any]:
        """Make an image of a lock; return its cell of the report."""
        self._count += 1
        layout = self.folder / "layouts" / f"{lock.cell}-{self._count}"
        digest = write_layout(layout, lock, salt=salt)
        write_lock(lock, lock_path(lock.cell, self.images))
        return report_cell(lock, str(layout), digest, **more)

    def report(self, *cells: dict[str, Any]) -> ReportModel:
        self.reports.mkdir(exist_ok=True)
        report = made_report(*cells)
        text = report.model_dump_json(by_alias=True)
        (self.reports / "report.json").write_text(text)
        return report

    def arguments(self, *more: str) -> list[str]:
        """The command line of `publish` for this folder."""
        places = ["--matrix", str(self.matrix), "--reports", str(self.reports)]
        return ["publish", *places, "--images", str(self.images), *more]
