"""The driver and the GPUs against what the image needs. No kernel is run before that is clear."""

# /// probe
# summary = "the driver serves the image's CUDA; every GPU's architecture has device code in torch"
# gpus = 1
# all_gpus = true
# timeout = 300
# ///

import ctypes
import os
import re
from pathlib import Path

import _ranks
import _support as support

NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
CODES = {
    3: ("cuda_not_initialized", "the CUDA driver cannot be initialised"),
    34: ("libcuda_stub", "libcuda.so.1 is the stub for linking, not the driver's library"),
    100: ("no_device", "the driver sees no GPU"),
    802: ("system_not_ready", "the system is not ready: NVSwitch machines need fabric manager"),
    803: ("driver_mismatch", "the user-mode driver does not match the kernel driver"),
    804: ("forward_compat", "forward compatibility was tried on a GPU that does not support it"),
    999: ("cuda_unknown", "the CUDA driver fails without giving a reason"),
}
"""cuInit's answers: cuda.h, enum cudaError_enum."""
FIXES = {
    "libcuda_stub": "remove /usr/local/cuda/lib64/stubs from LD_LIBRARY_PATH",
    "no_device": "start the container with --gpus; check CUDA_VISIBLE_DEVICES",
    "system_not_ready": "start the nvidia-fabricmanager whose version is that of the driver",
    "driver_mismatch": "reboot after a driver update; keep libcuda and cuda-compat out of images",
    "forward_compat": "remove cuda-compat from the image, or use a data-center GPU",
}


def check():
    library = initialise()
    devices()
    driver = kernel_driver()
    supported = driver_cuda(library)
    torch = support.import_torch()
    support.METRICS.update(driver=driver, driver_cuda=supported, libcuda=mapped())
    floor(driver)
    against_cuda(torch, supported)
    found = _ranks.gpus()
    if not found:
        support.fail(
            "no_device", "the driver is present, but torch sees no GPU", FIXES["no_device"]
        )
    support.METRICS["gpus"] = [f"{gpu['name']} ({gpu['arch']})" for gpu in found]
    architectures(found)
    _ranks.run_ranks(kernels, 1)
    names = ", ".join(sorted({f"{gpu['name']} ({gpu['arch']})" for gpu in found}))
    return f"driver {driver} (CUDA {supported}) runs CUDA {torch.version.cuda} on {names}"


def initialise():
    """Load and initialise libcuda, to report its own error before torch wraps it."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        support.fail(
            "no_libcuda",
            f"libcuda.so.1 cannot be loaded: {error}",
            "start the container with --gpus and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    answer = _ranks.run_ranks(lambda rank, world: library.cuInit(0), 1, timeout=30)[0]
    if answer:
        code, told = CODES.get(answer, (f"cuda_{answer}", "the CUDA driver does not start"))
        missing = [node for node in NODES if not Path(node).exists()]
        if missing and code != "libcuda_stub":
            support.fail(
                "device_nodes",
                f"{told} (error {answer}), and {', '.join(missing)} is missing",
                "load nvidia-uvm on the host (nvidia-modprobe -u), then start the container again",
            )
        support.fail(code, f"{told} (error {answer})", FIXES.get(code, ""))
    return library


def devices():
    """Note the device nodes: a container can have libcuda without them; names differ by host."""
    numbered = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    support.METRICS["device_nodes"] = [node for node in NODES if Path(node).exists()] + numbered


def kernel_driver():
    for place, pattern in (
        ("/sys/module/nvidia/version", r"([\d.]+)"),
        ("/proc/driver/nvidia/version", r"Kernel Module[^\n]*?\s([\d]+\.[\d.]+)"),
    ):
        try:
            match = re.search(pattern, Path(place).read_text())
        except OSError:
            continue
        if match:
            return match[1]
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        nvml.nvmlInit_v2()
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            return text.value.decode()
    except OSError:
        pass
    return None


def driver_cuda(library):
    number = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def mapped():
    return [os.path.realpath(path) for path in support.mapped_libraries(r"^libcuda\.so")]


def floor(driver):
    """The oldest driver for this CUDA, from the driver table that the lock was made with."""
    least = support.EXPECTED.get("driver_floor")
    if not least or not driver:
        return
    if numbers(driver) < numbers(least):
        support.fail(
            "driver_too_old",
            f"driver {driver} is older than {least}, the oldest for {support.EXPECTED['cuda']}",
            f"install driver {least} or newer, or take an image with an older CUDA",
        )


def against_cuda(torch, supported):
    wanted, have = numbers(torch.version.cuda), numbers(supported)
    if wanted[0] > have[0]:
        support.fail(
            "driver_too_old",
            f"the driver serves CUDA {supported}, the image is built for {torch.version.cuda}",
            "install a newer driver, take an image of an older CUDA, or use cuda-compat on a "
            "data-center GPU",
        )
    mode = "own" if have >= wanted else "minor-version compatibility: no PTX of this CUDA"
    support.METRICS["compatibility"] = mode


def architectures(found):
    """Device code for each GPU: a binary of the same major and not newer, or older PTX."""
    here = support.EXPECTED.get("archs") if support.EXPECTED.get("slim") else None
    listed = here or found[0]["code"]
    support.METRICS["archs"] = listed
    for gpu in found:
        major, minor = split(gpu["arch"])
        fits = []
        for arch in listed:
            its_major, its_minor = split(arch)
            binary = arch.startswith("sm_") and its_major == major and its_minor <= minor
            ptx = arch.startswith("compute_") and (its_major, its_minor) <= (major, minor)
            if binary or ptx:
                fits.append(arch)
        if not fits:
            support.fail(
                "no_kernel_image",
                f"{gpu['name']} is {gpu['arch']}; this image has device code for "
                f"{', '.join(listed)} only",
                "take a cell whose `archs` include it (`torchproof pick --gpu ...`)",
            )


def kernels(rank, world):
    """One kernel of torch itself, one of cuBLAS, one of cuDNN."""
    import torch

    left = torch.arange(64 * 64, device="cuda", dtype=torch.float32).reshape(64, 64) % 7
    if (left + left).sum().item() != 2 * left.cpu().sum().item():
        support.fail("kernel_wrong", "an addition on the GPU gives a wrong result")
    torch.backends.cuda.matmul.allow_tf32 = False
    if not torch.equal((left @ left).cpu(), left.cpu() @ left.cpu()):
        support.fail("cublas_wrong", "a matrix product of small integers is wrong on the GPU")
    image = torch.ones(1, 1, 8, 8, device="cuda")
    if torch.nn.functional.conv2d(image, torch.ones(1, 1, 3, 3, device="cuda")).max().item() != 9:
        support.fail("cudnn_wrong", "a convolution of ones is wrong on the GPU")


def split(arch):
    digits = re.sub(r"\D", "", arch.split("_")[1])
    return int(digits[:-1]), int(digits[-1])


def numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    support.main(check)
