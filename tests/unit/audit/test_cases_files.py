"""Public reports of broken images that show in files: libraries, wheels, device code, the driver.

The rest of the reports is in test_cases_static.py, with the list of all.
"""

from __future__ import annotations

from dataclasses import replace

from tests.unit.audit.audit_files import SITE, Content, Link, facts_of, findings, wheel
from torchproof.audit.facts import Detail, ImageFacts, RunConfig, Subject
from torchproof.audit.reading.elf_facts import ElfFacts, Symbol
from torchproof.model.cell import Cell
from torchproof.model.declared_host import DeclaredHost
from torchproof.model.lock import LayerName, Lock, LockedBase, LockedWheel
from torchproof.model.results import Finding, Level

TORCH = f"{SITE}/torch"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
PYTHON: dict[str, Content] = {"/opt/venv/bin/python3.11": ElfFacts(machine="x86_64", kind=2)}


def lib(*needed: str, **more: object) -> ElfFacts:
    return ElfFacts(machine="x86_64", needed=needed, **more)  # type: ignore[arg-type]


def undefined(*names: str, version: str = "", file: str = "") -> tuple[Symbol, ...]:
    return tuple(Symbol(name=name, version=version, file=file) for name in names)


def torch_files(cuda: ElfFacts, *, version: str = "2.14.1") -> dict[str, Content]:
    """Return a small torch: its extension module, and libtorch_cuda.so as given."""
    return {
        **PYTHON,
        **wheel("torch", version),
        f"{TORCH}/_C.cpython-311-x86_64-linux-gnu.so": lib(
            "libtorch_cuda.so", rpath=("$ORIGIN/lib",)
        ),
        f"{TORCH}/lib/libtorch_cuda.so": replace(
            cuda, rpath=("$ORIGIN/../../nvidia/nccl/lib", "$ORIGIN")
        ),
    }


def one(rule: str, facts: ImageFacts, level: Level = Level.ERROR) -> Finding:
    """Return the first finding of a rule that has the level; it must have a remedy."""
    found = [item for item in findings(rule, facts) if item.level is level]
    assert found, findings(rule, facts)
    assert found[0].fix
    return found[0]


def test_pip_check_dirty_image() -> None:
    facts = facts_of(
        {**PYTHON, **wheel("torch", "2.4.0+rocm6.0", requires=("pytorch-triton-rocm==3.0.0",))}
    )
    found = one("pins.requirements", facts)
    assert "pytorch-triton-rocm" in found.message
    assert "torch" in found.where
    assert "pip check" in found.fix


def test_glibc_manylinux_2_28() -> None:
    facts = facts_of(
        {
            **wheel("torch", "2.14.1", tag="cp311-cp311-manylinux_2_28_x86_64"),
            "/lib/x86_64-linux-gnu/libc.so.6": lib(
                version_defs=frozenset({"GLIBC_2.2.5", "GLIBC_2.27"})
            ),
        }
    )
    found = one("pins.platform", facts)
    assert "needs glibc 2.28" in found.message
    assert "2.27" in found.message
    assert "base with glibc 2.28" in found.fix


def test_flash_attn_cxx11_abi() -> None:
    symbol = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
    facts = facts_of(
        {
            **torch_files(lib("libc10.so"), version="2.6.0"),
            f"{TORCH}/lib/libc10.so": lib(
                defined=frozenset({"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_string"})
            ),
            **wheel("flash-attn", "2.7.4", requires=("torch",)),
            f"{SITE}/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so": lib(
                "libc10.so", undefined=undefined(symbol)
            ),
        }
    )
    found = [item for item in findings("link.symbol", facts) if "flash_attn_2_cuda" in item.where]
    assert found
    assert symbol in found[0].message
    assert "old C++ ABI" in found[0].message
    assert "cxx11abiTRUE" in found[0].fix


def test_nccl_cu12_cu13_clobber() -> None:
    owned = ("nvidia/nccl/lib/libnccl.so.2",)
    facts = facts_of(
        {
            **torch_files(lib("libnccl.so.2", undefined=undefined("ncclCommResume"))),
            **wheel("nvidia-nccl-cu12", "2.29.3", files=owned),
            **wheel("nvidia-nccl-cu13", "2.29.7", files=owned),
            NCCL: lib(soname="libnccl.so.2", defined=frozenset({"ncclCommInitRank"})),
        }
    )
    owner = one("duplicates.owner", facts)
    assert owner.where == NCCL
    assert "nvidia-nccl-cu12 2.29.3" in owner.message
    assert "nvidia-nccl-cu13 2.29.7" in owner.message
    symbol = one("link.symbol", facts)
    assert "ncclCommResume" in symbol.message
    assert "compat" in symbol.fix


def test_nccl_cu11_cu12_ci() -> None:
    owned = ("nvidia/nccl/lib/libnccl.so.2",)
    facts = facts_of(
        {
            **wheel("torch", "2.9.1", requires=("nvidia-nccl-cu12==2.27.5",)),
            **wheel("nvidia-nccl-cu11", "2.14.3", files=owned),
            **wheel("nvidia-nccl-cu12", "2.27.5", files=owned),
            NCCL: lib(),
        }
    )
    assert "nvidia-nccl-cu11" in one("duplicates.majors", facts).message
    assert one("duplicates.owner", facts).where == NCCL


def test_nccl_env_lies() -> None:
    facts = facts_of(
        {
            **wheel("torch", "2.2.2", requires=("nvidia-nccl-cu12==2.19.3",)),
            **wheel("nvidia-nccl-cu12", "2.19.3", files=("nvidia/nccl/lib/libnccl.so.2",)),
            NCCL: lib(soname="libnccl.so.2"),
            "/usr/lib/x86_64-linux-gnu/libnccl.so.2": lib(soname="libnccl.so.2"),
        },
        env={"NCCL_VERSION": "2.15.5-1"},
    )
    stated = one("duplicates.stated", facts, Level.WARNING)
    assert "NCCL_VERSION=2.15.5-1" in stated.message
    assert "2.19.3" in stated.message
    assert findings("duplicates.library", facts)


def test_cudnn_wheel_missing_sublib() -> None:
    folder = f"{SITE}/nvidia/cudnn/lib"
    name = "libcudnn_engines_tensor_ir.so.9"
    facts = facts_of(
        {
            **wheel(
                "nvidia-cudnn-cu13", "9.20.0.48", files=("nvidia/cudnn/lib/libcudnn_graph.so.9",)
            ),
            f"{folder}/libcudnn_graph.so.9": lib(mentions=frozenset({name})),
            f"/usr/lib/x86_64-linux-gnu/{name}": lib(soname=name),
        }
    )
    found = one("link.cudnn", facts)
    assert found.where == f"{folder}/libcudnn_graph.so.9"
    assert name in found.message
    assert "without cuDNN" in found.fix


def test_ld_library_path_beats_runpath() -> None:
    facts = facts_of(
        {
            f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9": lib(soname="libcudnn.so.9"),
            f"{SITE}/x/ext.so": lib("libcudnn.so.9", runpath=("$ORIGIN/../nvidia/cudnn/lib",)),
            "/usr/local/cuda/lib64/libcudnn.so.9": lib(soname="libcudnn.so.9"),
        },
        env={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
    )
    found = one("link.outranked", facts)
    assert found.where == "/usr/local/cuda/lib64/libcudnn.so.9"
    assert "LD_LIBRARY_PATH=/usr/local/cuda/lib64" in found.message
    assert "RUNPATH" in found.message


def test_nvjitlink_older_toolkit() -> None:
    name, symbol = "libnvJitLink.so.12", "__nvJitLinkComplete_12_4"
    facts = facts_of(
        {
            **torch_files(
                lib(name, undefined=undefined(symbol, version=name, file=name)), version="2.5.1"
            ),
            f"/usr/local/cuda-12.1/lib64/{name}": lib(
                soname=name,
                version_defs=frozenset({name}),
                defined=frozenset({"__nvJitLinkComplete_12_1", f"__nvJitLinkComplete_12_1@{name}"}),
            ),
        },
        env={"LD_LIBRARY_PATH": "/usr/local/cuda-12.1/lib64"},
    )
    found = one("link.symbol", facts)
    assert symbol in found.message
    assert f"/usr/local/cuda-12.1/lib64/{name}" in found.message


def test_multistage_copy_drops_system_lib() -> None:
    facts = facts_of(
        {
            "/opt/amazon/lib/libfabric.so.1": lib(
                "libefa.so.1", version_needs={"libefa.so.1": frozenset({"EFA_1.1", "EFA_1.4"})}
            ),
            "/usr/lib/x86_64-linux-gnu/libefa.so.1": lib(
                soname="libefa.so.1", version_defs=frozenset({"EFA_1.0", "EFA_1.1"})
            ),
        }
    )
    found = one("link.version", facts)
    assert found.where == "/opt/amazon/lib/libfabric.so.1"
    assert "EFA_1.4" in found.message
    assert "libefa.so.1 goes up to EFA_1.1" in found.message


def test_conda_libstdcxx_older() -> None:
    name = "libstdc++.so.6"
    site = "/opt/conda/lib/python3.11/site-packages"
    facts = facts_of(
        {
            "/opt/conda/bin/python3.11": ElfFacts(
                machine="x86_64", kind=2, needed=(name,), rpath=("$ORIGIN/../lib",)
            ),
            **wheel("torch", "2.9.1", site=site),
            f"{site}/torch/_C.cpython-311-x86_64-linux-gnu.so": lib(
                name, version_needs={name: frozenset({"GLIBCXX_3.4.32"})}
            ),
            f"/opt/conda/lib/{name}": lib(soname=name, version_defs=frozenset({"GLIBCXX_3.4.30"})),
            f"/usr/lib/x86_64-linux-gnu/{name}": lib(
                soname=name, version_defs=frozenset({"GLIBCXX_3.4.30", "GLIBCXX_3.4.32"})
            ),
        }
    )
    found = one("link.version", facts)
    assert "GLIBCXX_3.4.32" in found.message
    assert f"/opt/conda/lib/{name} goes up to GLIBCXX_3.4.30" in found.message


def test_compat_ldsoconf_order() -> None:
    folder = "/usr/local/cuda-12.9/compat"
    files: dict[str, Content] = {
        "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
        "/etc/ld.so.conf.d/cuda-compat.conf": f"{folder}\n",
        f"{folder}/libcuda.so.575.57.08": lib(soname="libcuda.so.1"),
        f"{folder}/libcuda.so.1": Link("libcuda.so.575.57.08"),
    }
    found = one("driver.compat", facts_of(files))
    assert found.where == "/etc/ld.so.conf.d/cuda-compat.conf"
    assert "575" in found.message
    assert "803" in found.message
    in_env = facts_of(files, env={"LD_LIBRARY_PATH": folder})
    assert any(item.where == "ENV LD_LIBRARY_PATH" for item in findings("driver.compat", in_env))


def test_require_cuda_old_driver() -> None:
    facts = facts_of(
        wheel("torch", "2.9.1+cu128"),
        env={
            "NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla,driver>=535,driver<536 "
            "brand=geforce,driver>=570,driver<571"
        },
        hosts=(DeclaredHost(name="desk", driver="550.144.03", gpu="RTX 4090"),),
    )
    found = one("driver.require", facts)
    assert "550.144.03" in found.message
    assert "cuda>=12.8" in found.message


def device_code(*archs: str) -> dict[str, Content]:
    path = f"{TORCH}/lib/libtorch_cuda.so"
    return {path: Detail(elf=lib(), archs=archs)}


def test_sm70_dropped_cu13() -> None:
    facts = facts_of(
        {
            **wheel("torch", "2.14.1+cu130"),
            **device_code("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
        },
        hosts=(DeclaredHost(name="old", driver="580.65.06", gpu="V100"),),
    )
    found = one("architectures.hosts", facts)
    assert "V100" in found.message
    assert "sm_75" in found.message
    assert "no PTX" in found.message
    assert "sm_70" in found.fix


def test_sm60_default_image() -> None:
    facts = facts_of(
        {**wheel("torch", "2.9.1+cu128"), **device_code("sm_70", "sm_80", "sm_90", "sm_120")},
        hosts=(DeclaredHost(name="notebooks", driver="570.26", gpu="P100"),),
    )
    found = one("architectures.hosts", facts)
    assert "notebooks" in found.message
    assert "sm_60" in found.message


def test_libibverbs_missing() -> None:
    facts = facts_of(
        {NCCL: lib(soname="libnccl.so.2")},
        cell=Cell(torch="2.9.1", cuda="cu128", rdma=True),
    )
    found = one("link.rdma", facts)
    assert found.where == NCCL
    assert "libibverbs.so.1 is absent" in found.message
    assert "libibverbs1" in found.fix
    relaxed = facts_of({NCCL: lib(soname="libnccl.so.2")}, config=RunConfig())
    assert {item.level for item in findings("link.rdma", relaxed)} == {Level.NOTE}


def test_layer_size_limit() -> None:
    big = LockedWheel(
        name="torch",
        version="2.9.1",
        filename="torch-2.9.1-cp311-cp311-manylinux_2_28_x86_64.whl",
        sha256="a" * 64,
        size=10_500_000_000,
        index="pypi",
        layer=LayerName.TORCH,
    )
    lock = Lock(
        cell="2.9.1-cu128-py311",
        torch="2.9.1",
        cuda="cu128",
        cudnn="9",
        nccl="2",
        triton=None,
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(bootstrap="debian/bookworm"),
        wheels=(big,),
    )
    facts = facts_of({}, lock=lock, subject=Subject.WHEELS)
    (found,) = findings("size.layer", facts)
    assert "torch" in found.message
    assert "ghcr.io takes 10 GB" in found.message
    assert found.fix
