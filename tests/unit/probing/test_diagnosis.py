"""Recorded messages of NCCL, CUDA, torch and engines, and what the table makes of them."""

import re

import pytest

from torchproof.probing.diagnosis import by_code, diagnose, table

RECORDED = [
    ("no_container_toolkit", 'could not select device driver "" with capabilities: [[gpu]]'),
    ("stale_cdi", "unresolvable CDI devices nvidia.com/gpu=0"),
    ("nvml_lost", "Failed to initialize NVML: Unknown Error"),
    ("nvml_lost", "NVML: Driver/library version mismatch"),
    ("toolkit_error", "nvidia-container-cli: initialization error: nvml error: driver not loaded"),
    (
        "driver_too_old",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
    ),
    ("driver_too_old", "The NVIDIA driver on your system is too old (found version 11040)."),
    ("ecc_error", "CUDA error: uncorrectable ECC error encountered"),
    ("system_not_ready", "Error 802: system not yet initialized"),
    ("nvls_fabric", "transport/nvls.cc:165 NCCL WARN Cuda failure 801 Multicast not supported"),
    ("device_nodes", "stat /dev/nvidia-uvm: No such file or directory"),
    (
        "driver_mismatch",
        "Error 803: unsupported display driver / cuda driver combination",
    ),
    ("forward_compat", "Error 804: forward compatibility was attempted on non supported HW"),
    ("daemon_gone", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."),
    ("libcuda_stub", "Error 34: CUDA driver is a stub library"),
    ("ptx_toolchain", "the provided PTX was compiled with an unsupported toolchain."),
    ("no_kernel_image", "CUDA error: no kernel image is available for execution on the device"),
    (
        "nccl_symbol",
        "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister",
    ),
    ("cudnn_sublibraries", "cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
    ("cudnn_mismatch", "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against"),
    ("glibc_too_old", "/lib/libc.so.6: version `GLIBC_2.28' not found (required by libtorch.so)"),
    ("torchrun_missing", "bash: torchrun: command not found"),
    ("wrong_shebang", "bash: /opt/venv/bin/torchrun: /old/bin/python: bad interpreter"),
    ("no_setuptools", "ModuleNotFoundError: No module named 'setuptools'"),
    ("no_compiler", "RuntimeError: Failed to find C compiler. Please specify via CC"),
    ("no_python_h", "main.c:5:10: fatal error: Python.h: No such file or directory"),
    ("uid_without_passwd", "KeyError: 'getpwuid(): uid not found: 1000700000'"),
    ("not_writable", "PermissionError: [Errno 13] Permission denied: '/.triton'"),
    ("shm_small", "Error while creating shared memory segment nccl-shm-recv-1 (size 9637888)"),
    ("shm_small", "DataLoader worker (pid 9) is killed by signal: Bus error."),
    ("shm_small", "unable to write to file </torch_1_2>: No space left on device (28)"),
    ("duplicate_gpu", "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000"),
    ("interface_not_found", "NCCL WARN Bootstrap : no socket interface found"),
    ("memlock_small", "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    ("pids_limit", "libgomp: Thread creation failed: Resource temporarily unavailable"),
    ("hostname_unresolvable", "of (gpu2, 37615) cannot be retrieved (gai error: -2"),
    ("port_in_use", "The server socket has failed to listen: EADDRINUSE"),
    (
        "master_unreachable",
        "The client socket has timed out after 60000ms while trying to connect to "
        "(10.9.9.9, 29500)",
    ),
    ("connection_refused", "socketStartConnect: Connect to 10.0.0.1 failed : Connection refused"),
    ("gpu_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4 GiB."),
    ("peer_access", "CUDA error: peer access is not supported between these two devices"),
    ("collective_timeout", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1"),
]


@pytest.mark.parametrize(("code", "text"), RECORDED)
def test_names_the_fault_of_a_recorded_message(code: str, text: str) -> None:
    found = diagnose(f"first line\n{text}\nlast line")
    assert found is not None
    assert found.code == code
    assert found.fix


def test_an_unknown_message_has_no_diagnosis() -> None:
    assert diagnose("ValueError: optimizer got an empty parameter list") is None


def test_every_row_has_a_source_a_fix_and_a_code_of_its_own() -> None:
    rows = [entry.diagnosis for entry in table()]
    assert len({row.code for row in rows}) == len(rows)
    assert all(row.source and row.fix and row.message for row in rows)


def test_a_named_group_fills_the_message() -> None:
    found = diagnose("undefined symbol: ncclMemFree")
    assert found is not None
    assert "ncclMemFree" in found.message


def test_no_placeholder_is_left_open() -> None:
    for code, text in RECORDED:
        found = diagnose(text)
        assert found is not None
        assert not re.search(r"\{\w+\}", found.message + found.fix), code


@pytest.mark.parametrize(
    "code", ["no_container_toolkit", "toolkit_error", "stale_cdi", "nvml_lost", "ecc_error",
             "system_not_ready", "device_nodes", "daemon_gone"]
)  # fmt: skip
def test_a_fault_of_the_host_is_the_hosts(code: str) -> None:
    found = by_code(code)
    assert found is not None
    assert found.host_fault
