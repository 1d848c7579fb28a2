"""Will an image run on a host: its CUDA and device code against a driver and a GPU. Pure.

Sources of the rules: NVIDIA, CUDA Compatibility (docs.nvidia.com/deploy/cuda-compatibility), and
CUDA C++ Programming Guide (binary and PTX compatibility); versions come from data/*.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchproof.model.declared_host import DeclaredHost
from torchproof.model.platforms import ARM64
from torchproof.model.versions import cuda_version
from torchproof.upstream.facts import Facts
from torchproof.upstream.gpus import DeviceCode, Forward, GpuModel, GpuTable, best_code
from torchproof.upstream.host_fit import (
    Driver,
    Fit,
    HostAnswer,
    HostRow,
    HostRule,
    ImageNeeds,
    parse_driver,
)

COMPATIBILITY = "NVIDIA CUDA Compatibility, docs.nvidia.com/deploy/cuda-compatibility"
GUIDE = "NVIDIA CUDA C++ Programming Guide, binary and PTX compatibility"


def host_table(
    images: Iterable[ImageNeeds], hosts: Sequence[DeclaredHost], facts: Facts, table: GpuTable
) -> tuple[HostRow, ...]:
    """Answer for every image on every declared host.

    Raises InputError for a host with an unknown GPU, or a driver that is not a version.
    """
    known = [
        (
            host.name,
            parse_driver(host.driver) if host.driver else None,
            table.find(host.gpu) if host.gpu else None,
        )
        for host in hosts
    ]
    return tuple(
        HostRow(
            cell=image.cell,
            answers=tuple(
                (name, will_it_run(image, driver, gpu, facts)) for name, driver, gpu in known
            ),
        )
        for image in images
    )


def will_it_run(
    image: ImageNeeds, driver: Driver | None, gpu: GpuModel | None, facts: Facts
) -> HostAnswer:
    """Answer for one image on one host; what is unknown (None) is not judged."""
    if driver is None and gpu is None:
        return HostAnswer(
            fit=Fit.UNKNOWN,
            rule=None,
            reason="the host declares neither driver nor GPU",
            source="",
            change=("give the host a driver and a gpu in matrix.yaml",),
        )
    code = _device_code(image, gpu) if gpu else None
    if isinstance(code, HostAnswer):
        return code
    if driver is None:
        return HostAnswer(
            fit=Fit.UNKNOWN,
            rule=HostRule.DEVICE_CODE,
            reason=f"{_serves(image, gpu, code)}; the driver is not declared",
            source=GUIDE,
            change=("give the host its driver in matrix.yaml",),
        )
    if gpu is not None and (refused := _driver_knows(driver, gpu)):
        return refused
    return _driver_and_cuda(image, driver, gpu, code, facts)


def _device_code(image: ImageNeeds, gpu: GpuModel) -> DeviceCode | HostAnswer | None:
    """Return the code that the GPU would run, None if it is unknown, or a refusal."""
    if gpu.cpu == "arm64" and image.platform != ARM64:
        return HostAnswer(
            fit=Fit.NO,
            rule=HostRule.PLATFORM,
            reason=f"{gpu.name} has an Arm CPU, the image is {image.platform}",
            source=COMPATIBILITY,
            change=("a cell with platform linux/arm64",),
        )
    if not image.archs:
        return None
    code = best_code(image.archs, gpu.arch, cuda=cuda_version(image.cuda))
    if code is not None:
        return code
    ptx = any(arch.startswith("compute_") for arch in image.archs)
    return HostAnswer(
        fit=Fit.NO,
        rule=HostRule.DEVICE_CODE,
        reason=f"no device code for {gpu.label}: {image.archs_from} {_listed(image.archs)}"
        + ("" if ptx else " and no PTX"),
        source=GUIDE,
        change=(f"a build with code for {gpu.arch.id}",),
    )


def _driver_knows(driver: Driver, gpu: GpuModel) -> HostAnswer | None:
    arch = gpu.arch
    if arch.first_driver and driver < parse_driver(arch.first_driver):
        return HostAnswer(
            fit=Fit.NO,
            rule=HostRule.DRIVER_KNOWS_GPU,
            reason=f"driver {driver.text} does not support {arch.label}: the first that does is "
            f"{arch.first_driver}",
            source="NVIDIA CUDA release notes",
            change=(f"driver {arch.first_driver} or newer",),
        )
    if arch.last_branch and driver.branch > arch.last_branch:
        return HostAnswer(
            fit=Fit.NO,
            rule=HostRule.DRIVER_KNOWS_GPU,
            reason=f"driver {driver.text} no longer supports {arch.label}: the last branch that "
            f"did is R{arch.last_branch}",
            source="NVIDIA Unix driver notes",
            change=(f"a driver of branch R{arch.last_branch}",),
        )
    return None


def _driver_and_cuda(
    image: ImageNeeds,
    driver: Driver,
    gpu: GpuModel | None,
    code: DeviceCode | None,
    facts: Facts,
) -> HostAnswer:
    cuda = cuda_version(image.cuda)
    native, floor = facts.toolkit_driver.get(cuda), facts.driver_floor(image.cuda)
    serves = _serves(image, gpu, code)
    if native and driver >= parse_driver(native):
        return HostAnswer(
            fit=Fit.YES,
            rule=HostRule.TOOLKIT_DRIVER,
            reason=f"driver {driver.text} is at least {native}, the driver of CUDA {cuda}{serves}",
            source=COMPATIBILITY,
        )
    wanted = f"driver {native or floor} or newer"
    if not floor or driver < parse_driver(floor):
        older = f"driver {driver.text} is older than {floor or native}, the oldest for CUDA {cuda}"
        return _forward(cuda, older, gpu, wanted=f"driver {floor or native} or newer")
    if code is not None and code.ptx:
        behind = (
            f"the only code for {gpu.label if gpu else 'the GPU'} is PTX ({code.entry}), which a "
            f"driver older than {native or 'the toolkit'} cannot compile"
        )
        answer = _forward(cuda, behind, gpu, wanted=wanted)
        if answer.fit is Fit.FORWARD:
            return answer
        return HostAnswer(
            fit=Fit.NO,
            rule=HostRule.PTX_COMPILER,
            reason=behind,
            source=COMPATIBILITY,
            change=(wanted, *answer.change[1:]),
        )
    return HostAnswer(
        fit=Fit.MINOR,
        rule=HostRule.MINOR_VERSION,
        reason=f"driver {driver.text} is older than CUDA {cuda}'s own ({native or 'unknown'}), "
        f"but at least {floor}: every CUDA {cuda.split('.')[0]}.x runs, without features of newer "
        f"drivers and without compiling CUDA {cuda} PTX{serves}",
        source=COMPATIBILITY,
    )


def _forward(cuda: str, why: str, gpu: GpuModel | None, *, wanted: str) -> HostAnswer:
    package = "cuda-compat-" + cuda.replace(".", "-")
    allowed = gpu.forward if gpu else Forward.UNKNOWN
    match allowed:
        case Forward.NO:
            return HostAnswer(
                fit=Fit.NO,
                rule=HostRule.FORWARD,
                reason=f"{why}, and {gpu.name if gpu else 'the GPU'} is a GeForce: NVIDIA allows "
                "forward compatibility on data-center GPUs, not on GeForce",
                source=COMPATIBILITY,
                change=(wanted,),
            )
        case Forward.YES:
            may = f"{gpu.name if gpu else 'the GPU'} may"
        case Forward.SOME:
            may = f"of {gpu.name if gpu else 'such GPUs'} only NGC-ready server models may"
        case Forward.UNKNOWN:
            may = "data-center GPUs may, GeForce may not"
    return HostAnswer(
        fit=Fit.FORWARD,
        rule=HostRule.FORWARD,
        reason=f"{why}; {may} use forward compatibility ({package})",
        source=COMPATIBILITY,
        change=(wanted, f"{package} loaded before the driver's libcuda on that host"),
    )


def _serves(image: ImageNeeds, gpu: GpuModel | None, code: DeviceCode | None) -> str:
    if gpu is None:
        return ""
    if code is None:
        return f"; the device code for {gpu.label} is unknown"
    kind = "PTX" if code.ptx else "binary code"
    return f"; {gpu.label} runs its {kind} {code.entry} ({image.archs_from})"


def _listed(archs: Iterable[str]) -> str:
    return "has " + ", ".join(archs)
