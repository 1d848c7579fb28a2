"""Public reports of broken images, each caught before anything runs. One test a report.

A test is named for its report and asserts the rule, the file that the message names, and the
remedy. `CASES` lists all of them; what other files test is found by name.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.audit import textaudit
from tests.unit.audit.audit_files import SITE, facts_of
from torchproof.audit.facts import ImageFacts, RunConfig, Subject
from torchproof.audit.rule import Rule, evaluate
from torchproof.audit.rules.image import compile as compiling
from torchproof.audit.rules.image import entry, shadowing
from torchproof.audit.rules.recipes import index as indexes
from torchproof.engines.build_cells import bytes_needed
from torchproof.errors import InputError, IntegrityError
from torchproof.image.layers import make_plan
from torchproof.index.wheel_store import check
from torchproof.matrix.expand import expand, parse_matrix
from torchproof.model.cell import Cell
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel
from torchproof.model.results import Evidence, Finding, Host, Judged, Level, State, SubjectKind
from torchproof.upstream.facts import load_facts

CASES = (
    "shm-k8s-ci-migration",
    "torchrun-not-found-container",
    "official-image-no-python",
    "workdir-shadows-torch",
    "pip-check-dirty-image",
    "pypi-default-cuda-moved",
    "uv-extra-index-wins",
    "ngc-prerelease-constraint",
    "index-derived-from-cuda-version",
    "copy-restores-lockfile",
    "index-hash-differs-from-pypi",
    "glibc-manylinux_2_28",
    "mutable-base-tag",
    "base-tag-deleted",
    "apt-key-rotation",
    "torchvision-variant-mismatch",
    "flash-attn-cxx11-abi",
    "nccl-cu12-cu13-clobber",
    "nccl-cu11-cu12-ci",
    "nccl-env-lies",
    "cudnn-wheel-missing-sublib",
    "ld-library-path-beats-runpath",
    "nvjitlink-older-toolkit",
    "multistage-copy-drops-system-lib",
    "conda-libstdcxx-older",
    "compat-ldsoconf-order",
    "require-cuda-old-driver",
    "aarch64-cpu-wheel-trap",
    "no-arm64-manifest",
    "sm70-dropped-cu13",
    "sm60-default-image",
    "libibverbs-missing",
    "runtime-image-no-cc",
    "validation-tests-previous-image",
    "tag-auto-resolver",
    "layer-size-limit",
    "nightly-layers-change",
    "runner-disk-full",
    "registry-rate-limit",
    "multiarch-tag-overwritten",
)
WHL = "https://download.pytorch.org/whl"


def only(texts: dict[str, str], rule: str) -> Finding:
    """Return the one finding of a rule."""
    (found,) = textaudit.findings(
        {path: textwrap.dedent(text) for path, text in texts.items()}, rule
    )
    return found


def from_image(rules: tuple[Rule, ...], rule: str, facts: ImageFacts) -> list[Finding]:
    return [found for found in evaluate(rules, facts) if found.rule == rule]


def wheel(name: str, version: str, size: int = 1, index: str = "pypi") -> LockedWheel:
    return LockedWheel(
        name=name,
        version=version,
        filename=f"{name.replace('-', '_')}-{version}-py3-none-manylinux_2_28_x86_64.whl",
        sha256="a" * 64,
        size=size,
        index=index,
        layer=LayerName.TORCH,
    )


def lock(*wheels: LockedWheel, platform: str = "linux/amd64") -> Lock:
    return Lock(
        cell="2.8.0-cu128-py311",
        torch="2.8.0",
        cuda="cu128",
        cudnn="9.10.2.21",
        nccl="2.27.3",
        triton=None,
        python="3.11",
        platform=platform,
        base=LockedBase(bootstrap="debian/bookworm"),
        wheels=wheels,
    )


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test_of_its_name(case: str) -> None:
    name = "test_" + re.sub(r"\W", "_", case)
    tests = Path(__file__).parents[2]
    texts = (file.read_text(encoding="utf-8") for file in sorted(tests.rglob("test_*.py")))
    assert any(re.search(rf"^def {name}\b", text, re.MULTILINE) for text in texts), name


def test_shm_k8s_ci_migration() -> None:
    pod = """\
        apiVersion: v1
        kind: Pod
        metadata: {name: ci}
        spec:
          containers:
            - name: test
              image: registry.example/ci@sha256:aa
              command: [torchrun, --nproc-per-node=4, test.py]
              resources: {limits: {nvidia.com/gpu: 4}}
        """
    found = only({"pod.yaml": pod}, "recipe.shm")
    assert (found.level, found.where) == (Level.ERROR, "pod.yaml:6")
    assert "64 MiB" in found.message
    assert "emptyDir {medium: Memory" in found.fix


def test_torchrun_not_found_container() -> None:
    facts = facts_of(
        {
            f"{SITE}/torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.9.1\n",
            "/opt/venv/bin/torchrun": "#!/opt/venv/bin/python\n",
            "/opt/venv/bin/python": "",
            "/usr/bin/python": "",
        },
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    found = from_image(entry.RULES, "entry.path", facts)
    (torchrun,) = [item for item in found if item.message.startswith("torchrun")]
    assert torchrun.where == "/opt/venv/bin/torchrun"
    assert "PATH of the image is /usr/local/bin:/usr/bin:/bin" in torchrun.message
    assert "ENV PATH=/opt/venv/bin" in torchrun.fix


def test_official_image_no_python() -> None:
    dockerfile = """\
        FROM ubuntu:24.04 AS conda
        ENV PATH=/opt/python-venv/bin:$PATH
        RUN python3 -m venv /opt/python-venv
        FROM ubuntu:24.04 AS official
        COPY --from=conda /opt/python-venv /opt/python-venv
        CMD ["python"]
        """
    found = only({"Dockerfile": dockerfile}, "dockerfile.lost-path")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:5")
    assert "official" in found.message
    assert "conda" in found.message
    assert 'ENV PATH="/opt/python-venv/bin:$PATH"' in found.fix
    built = facts_of(
        {"/opt/python-venv/bin/python": ""},
        config=RunConfig(env={"PATH": "/usr/bin:/bin"}, cmd=("python",)),
    )
    assert from_image(entry.RULES, "entry.command", built)


def test_workdir_shadows_torch() -> None:
    facts = facts_of(
        {
            f"{SITE}/torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.9.1\n",
            f"{SITE}/torch/__init__.py": "",
            "/workspace/torch/__init__.py": "",
        },
        config=RunConfig(workdir="/workspace"),
    )
    (found,) = from_image(shadowing.RULES, "shadowing.module", facts)
    assert (found.level, found.where) == (Level.ERROR, "/workspace/torch/__init__.py")
    assert "WORKDIR /workspace contains torch/" in found.message
    assert "WORKDIR" in found.fix


def test_pypi_default_cuda_moved() -> None:
    dockerfile = """\
        FROM nvidia/cuda:12.9.1-devel-ubuntu22.04
        RUN uv pip install --system torch==2.13.0
        """
    found = only({"Dockerfile": dockerfile}, "index.default-cuda")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:2")
    assert "CUDA 13.0" in found.message
    assert "12.9" in found.message
    assert "--index-url" in found.fix


def test_uv_extra_index_wins() -> None:
    script = f"""\
        #!/bin/sh
        uv pip install torch --index-url {WHL}/cu128 --extra-index-url https://mirror.example/simple
        """
    found = only({"setup.sh": script}, "index.uv-extra")
    assert (found.level, found.where) == (Level.ERROR, "setup.sh:2")
    assert f"not from {WHL}/cu128" in found.message
    assert "explicit = true" in found.fix


def test_ngc_prerelease_constraint() -> None:
    texts = {
        "Dockerfile": "FROM nvcr.io/nvidia/pytorch:25.05-py3\nRUN pip install -r requirements.txt",
        "requirements.txt": "torch>=2.8.0\n",
    }
    found = only(texts, "base.prerelease")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:2")
    assert "2.8.0a0" in found.message
    assert "torch>=2.8.0" in found.message
    assert "constraint" in found.fix


def test_index_derived_from_cuda_version() -> None:
    dockerfile = f"""\
        FROM nvidia/cuda:13.4.0-devel-ubuntu24.04
        RUN uv pip install torch==2.11.0 --index-url {WHL}/cu$(echo $CUDA_VERSION | tr -d .)
        """
    found = only({"Dockerfile": dockerfile}, "index.derived")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:2")
    assert "whl/cu134" in found.message
    written = dockerfile.replace("cu$(echo $CUDA_VERSION | tr -d .)", "cu134")
    unpublished = only({"Dockerfile": written}, "index.unpublished")
    assert "no PyTorch wheels for cu134" in unpublished.message
    with pytest.raises(InputError):
        expand(parse_matrix('torch: ["2.11"]\ncuda: [cu134]\n'), load_facts())


def test_copy_restores_lockfile() -> None:
    dockerfile = """\
        FROM python:3.11
        WORKDIR /app
        COPY pyproject.toml uv.lock ./
        RUN sed -i '/^torch/d' uv.lock
        COPY . .
        """
    found = only({"Dockerfile": dockerfile}, "order.copy-over-change")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:5")
    assert "/app/uv.lock" in found.message
    assert "line 4" in found.message
    assert "UV_NO_SYNC" in found.fix


def test_index_hash_differs_from_pypi(tmp_path: Path) -> None:
    locked = wheel("nvidia-nvtx-cu12", "12.6.77", size=5)
    file = tmp_path / locked.filename
    file.write_bytes(b"other")
    with pytest.raises(IntegrityError) as caught:
        check(locked, file, "2.9.1-cu126-py311")
    assert locked.filename in caught.value.message
    assert locked.sha256 in caught.value.message
    assert "lock --upgrade" in caught.value.fix
    other = replace(locked, sha256="b" * 64, index="pytorch/cu126")
    facts = facts_of({}, lock=lock(locked, other))
    (found,) = from_image(indexes.RULES, "index.two-hashes", facts)
    assert found.where == locked.filename
    assert "pytorch/cu126" in found.message


def test_mutable_base_tag() -> None:
    found = only({"Dockerfile": "FROM nvidia/cuda:12.8.1-base-ubuntu22.04\n"}, "base.floating")
    assert (found.level, found.where) == (Level.WARNING, "Dockerfile:1")
    assert "NVIDIA_REQUIRE_CUDA" in found.message
    assert "@sha256:" in found.fix


def test_base_tag_deleted() -> None:
    base = "nvidia/cuda:11.4.0-cudnn8-devel-ubuntu20.04"
    found = only({"Dockerfile": f"FROM {base}\n"}, "base.deleted-tag")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:1")
    assert base in found.message
    assert "mirror" in found.fix


def test_apt_key_rotation() -> None:
    dockerfile = "FROM nvidia/cuda:11.2.2-devel-ubuntu20.04\nRUN apt-get update\n"
    found = only({"Dockerfile": dockerfile}, "base.apt-key")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:2")
    assert "7fa2af80" in found.message
    assert "/etc/apt/sources.list.d/cuda.list" in found.fix


def test_torchvision_variant_mismatch() -> None:
    requirements = "torch==2.9.0+cpu\ntorchvision==0.24.0\n"
    found = only({"requirements.txt": requirements}, "index.companions")
    assert (found.level, found.where) == (Level.ERROR, "requirements.txt:1")
    assert "torchvision 0.24.0" in found.message
    assert "one index" in found.fix


def test_aarch64_cpu_wheel_trap() -> None:
    dockerfile = "FROM --platform=linux/arm64 ubuntu:24.04\nRUN pip install torch==2.8.0\n"
    found = only({"Dockerfile": dockerfile}, "index.arm64-cpu")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:2")
    assert "CPU build" in found.message
    facts = facts_of({}, lock=lock(wheel("torch", "2.8.0"), platform="linux/arm64"))
    (locked,) = from_image(indexes.RULES, "index.arm64-cpu", facts)
    assert locked.where.startswith("torch-2.8.0")
    good = facts_of(
        {}, lock=lock(wheel("torch", "2.8.0", index="pytorch/cu129"), platform="linux/arm64")
    )
    assert from_image(indexes.RULES, "index.arm64-cpu", good) == []


def test_no_arm64_manifest() -> None:
    dockerfile = "FROM --platform=linux/arm64 pytorch/pytorch:2.13.0-cuda13.0-cudnn9-devel\n"
    found = only({"Dockerfile": dockerfile}, "base.platform")
    assert (found.level, found.where) == (Level.ERROR, "Dockerfile:1")
    assert "has no linux/arm64" in found.message
    assert "nvidia/cuda" in found.fix


def test_runtime_image_no_cc() -> None:
    facts = facts_of(
        {f"{SITE}/torch-2.9.1.dist-info/METADATA": "Name: torch\nVersion: 2.9.1\n"},
        subject=Subject.IMAGE,
        cell=Cell(torch="2.9.1", cuda="cu128", compile=True),
    )
    found = from_image(compiling.RULES, "compile.compiler", facts)
    assert {item.level for item in found} == {Level.ERROR}
    assert "no C compiler" in found[0].message
    assert "gcc" in found[0].fix
    assert from_image(compiling.RULES, "compile.headers", facts)


def test_validation_tests_previous_image() -> None:
    workflow = """\
        jobs:
          build:
            steps:
              - run: docker build -t ghcr.io/a/torch:2.9 .
          validate:
            steps:
              - run: docker pull ghcr.io/a/torch:2.9
              - run: docker run ghcr.io/a/torch:2.9 python -c 'import torch'
        """
    found = only({"ci.yml": workflow}, "ci.tests-another-image")
    assert (found.level, found.where) == (Level.ERROR, "ci.yml:7")
    assert "line 4" in found.message
    assert "digest" in found.fix


def test_a_verdict_names_the_digest_that_was_probed() -> None:
    evidence = Evidence(
        subject=SubjectKind.IMAGE,
        digest="sha256:bb",
        suite_hash="sha256:cc",
        host=Host(engine="docker"),
        at="2026-12-01T00:00:00Z",
    )
    assert Judged(state=State.VERIFIED, reason="", evidence=evidence).evidence.digest == "sha256:bb"


def test_tag_auto_resolver() -> None:
    script = "#!/bin/sh\nTAG=$(crane ls ghcr.io/llm-d/llm-d | tail -1)\n"
    found = only({"resolve.sh": script}, "ci.guessed-tag")
    assert (found.level, found.where) == (Level.ERROR, "resolve.sh:2")
    assert "pin a version" in found.fix
    for torch in ("auto", "latest"):
        with pytest.raises(InputError):
            expand(parse_matrix(f'torch: ["{torch}"]\ncuda: [cu128]\n'), load_facts())


def test_nightly_layers_change() -> None:
    dockerfile = """\
        FROM python:3.11
        COPY requirements.txt .
        WORKDIR /app
        ARG BUILD_DATE
        RUN pip install -r requirements.txt
        """
    found = only({"Dockerfile": dockerfile}, "order.volatile")
    assert (found.level, found.where) == (Level.WARNING, "Dockerfile:4")
    assert "ARG BUILD_DATE" in found.message
    assert "line 5" in found.message
    one = lock(wheel("torch", "2.8.0"), wheel("numpy", "2.1"))
    assert make_plan(one) == make_plan(lock(wheel("torch", "2.8.0"), wheel("numpy", "2.1")))


def test_runner_disk_full() -> None:
    plan = make_plan(lock(wheel("torch", "2.8.0", size=3_500_000_000)))
    assert bytes_needed(plan, copies=3) > 14e9
    assert bytes_needed(plan, copies=3, known={layer.key for layer in plan.layers}) == 0


def test_registry_rate_limit() -> None:
    workflow = """\
        jobs:
          build:
            strategy: {matrix: {cuda: ["12.6", "12.8", "13.0"]}}
            steps:
              - run: docker pull nvidia/cuda:12.8.1-base-ubuntu22.04
        """
    found = only({"ci.yml": workflow}, "ci.rate-limit")
    assert (found.level, found.where) == (Level.WARNING, "ci.yml:3")
    assert "429" in found.message
    assert "log in" in found.fix


def test_multiarch_tag_overwritten() -> None:
    workflow = """\
        jobs:
          image:
            strategy: {matrix: {platform: [linux/amd64, linux/arm64]}}
            steps:
              - uses: docker/build-push-action@v6
                with: {push: true, tags: "r.example/rl:0.6", platforms: "${{ matrix.platform }}"}
        """
    found = only({"ci.yml": workflow}, "ci.overwritten-tag")
    assert (found.level, found.where) == (Level.ERROR, "ci.yml:6")
    assert "r.example/rl:0.6" in found.message
    assert "push by digest" in found.fix
