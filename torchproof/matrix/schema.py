"""What matrix.yaml may contain. matrix.schema.json is made from these models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from packaging.version import Version
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    field_validator,
    model_validator,
)

from torchproof._yaml import Document, Location
from torchproof.model.declared_host import DeclaredHost
from torchproof.model.platforms import AMD64, PlatformName
from torchproof.model.versions import minor_of
from torchproof.upstream.facts import Facts

Torch = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+(\.\d+)?$")]
Cuda = Annotated[str, StringConstraints(pattern=r"^cu\d{3}$")]
Python = Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
WheelVersion = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)+$")]
Arch = Annotated[str, StringConstraints(pattern=r"^sm_\d{2,3}[af]?$")]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class Strict(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class BaseEntry(Strict):
    """The OS layer: an image pinned by digest, or a distribution to bootstrap from its archive."""

    image: str | None = Field(default=None, pattern=r"^[^@\s]+@sha256:[0-9a-f]{64}$")
    """A reference pinned by digest: `name@sha256:…`."""
    bootstrap: str | None = None
    """A distribution and its release: `debian/bookworm`."""
    packages: tuple[Text, ...] = ()
    """Further packages of the distribution."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.image is None) == (self.bootstrap is None):
            raise ValueError("name either `image` (pinned by digest) or `bootstrap`")
        return self


class Options(Strict):
    """What every image gets unless its cell says otherwise."""

    compile: bool = True
    """A C and C++ compiler, so that torch.compile works."""
    rdma: bool = False
    """libibverbs and its providers."""
    extras: tuple[Text, ...] = ()
    """Further requirements, installed above NCCL: `numpy`, `deepspeed==0.18.2`."""


class CellEntry(Strict):
    """One more cell in addition to the axes. What it leaves out is as for cells of the axes."""

    torch: Torch
    cuda: Cuda
    python: Python | None = None
    platform: PlatformName | None = None
    cudnn: WheelVersion | None = None
    """Replaces the cuDNN wheel that torch pins."""
    nccl: WheelVersion | None = None
    """Replaces the NCCL wheel that torch pins."""
    gpus: tuple[Arch, ...] = ()
    """Slim image: keep device code for these architectures only (`sm_90`)."""
    extras: tuple[Text, ...] | None = None
    compile: bool | None = None
    rdma: bool | None = None
    base: BaseEntry | None = None
    wheelhouse: Text | None = None
    """Folder of your own wheels, relative to matrix.yaml."""


class Exclude(Strict):
    """Cells that are not to be built, and why. Every field given must match."""

    torch: Torch | None = None
    cuda: Cuda | None = None
    python: Python | None = None
    platform: PlatformName | None = None
    reason: Text

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not any((self.torch, self.cuda, self.python, self.platform)):
            raise ValueError("say what to exclude: torch, cuda, python or platform")
        return self


class Probes(Strict):
    """What each image must prove."""

    required: tuple[Text, ...] = (
        "versions",
        "torchrun",
        "nccl_init",
        "ddp_step",
        "allreduce_bandwidth",
    )
    """A cell is `verified` only if all of these passed."""
    optional: tuple[Text, ...] = ()
    """Run and shown; never decide a verdict."""
    rest: bool = True
    """Whether the other probes of the set run too, as optional ones."""
    thresholds: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Numbers that probes are judged by: probe → name → value."""
    bandwidth_tolerance: float = Field(default=0.1, ge=0, lt=1)
    """How far below its recorded baseline a bandwidth may fall: 0.1 is ten per cent."""
    baseline: Text = "baselines.yaml"
    """File of recorded bandwidths, relative to matrix.yaml."""

    @model_validator(mode="after")
    def _one_list_each(self) -> Self:
        both = set(self.required) & set(self.optional)
        if both:
            raise ValueError(f"both required and optional: {', '.join(sorted(both))}")
        return self


class Ignored(Strict):
    """An audit rule whose findings do not count, and why."""

    rule: Text
    reason: Text


class Audit(Strict):
    """Which audit rules decide a verdict."""

    required: tuple[Text, ...] | None = None
    """Rules whose errors fail a cell; left out: every rule that is required by default."""
    ignore: tuple[Ignored, ...] = ()


class HostEntry(Strict):
    """A machine that images are meant for."""

    name: Text
    driver: str = Field(pattern=r"^\d+(\.\d+){0,2}$")
    """Version of its NVIDIA driver."""
    gpu: Text
    """Model (`H100`) or architecture (`sm_90`)."""
    count: int = Field(default=1, ge=1)


class Publish(Strict):
    """Where verified images go, and what may go there."""

    registry: Text | None = None
    repository: Text = "torchproof"
    accept_unproven: tuple[Text, ...] = ()
    """Probes that may be unproven; the tag says so."""
    keep: int = Field(default=5, ge=0)
    """How many versions of a cell pruning keeps."""
    keep_verified: bool = True


class Matrix(Strict):
    """What to build and what each image must prove."""

    model_config = ConfigDict(title="matrix.yaml of torchproof")

    torch: tuple[Torch, ...] = ()
    """Axis: versions of PyTorch. A minor version (`"2.9"`) means its newest patch."""
    cuda: tuple[Cuda, ...] = ()
    """Axis: CUDA builds, by the name of their wheels (`cu128`)."""
    python: tuple[Python, ...] = ("3.11",)
    """Axis: Python versions."""
    platform: tuple[PlatformName, ...] = (AMD64,)
    """Axis: platforms."""
    base: BaseEntry = BaseEntry(bootstrap="debian/bookworm")
    options: Options = Options()
    wheelhouse: Text | None = None
    """Folder of your own wheels, for every cell that it has a torch for."""
    cells: tuple[CellEntry, ...] = ()
    """Cells in addition to the axes."""
    exclude: tuple[Exclude, ...] = ()
    probes: Probes = Probes()
    audit: Audit = Audit()
    hosts: tuple[HostEntry, ...] = ()
    publish: Publish = Publish()
    indexes: dict[str, Text] = Field(default_factory=dict)
    """Alias → URL, instead of the well-known ones: `pypi`, `pytorch`, `pytorch/cu118`."""

    _document: Document | None = PrivateAttr(default=None)

    def attach(self, document: Document) -> None:
        """Remember the document, for the line of each value."""
        self._document = document

    def where(self, location: Location) -> str:
        """Return `matrix.yaml:12` for a value; an empty string for a matrix built in code."""
        return self._document.where(location) if self._document else ""

    @property
    def folder(self) -> Path:
        """The folder that paths in the file are relative to."""
        return self._document.path.parent if self._document else Path()

    @property
    def declared_hosts(self) -> tuple[DeclaredHost, ...]:
        """The hosts as the values that other rooms take."""
        return tuple(DeclaredHost(**host.model_dump()) for host in self.hosts)

    @field_validator("python", "platform", "torch", "cuda", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_cells(self) -> Self:
        if bool(self.torch) != bool(self.cuda):
            raise ValueError("`torch` and `cuda` make the axes together: name both or neither")
        if not self.torch and not self.cells:
            raise ValueError("no cells: name the axes `torch` and `cuda`, or list `cells`")
        return self


def matrix_schema(facts: Facts) -> dict[str, Any]:
    """Return the JSON Schema of matrix.yaml; it lists the known names, for editors to complete."""
    schema = Matrix.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    versions = sorted(facts.releases, key=Version, reverse=True)
    names = {
        "torch": list(dict.fromkeys([*map(minor_of, versions), *versions])),
        "cuda": list(facts.cuda_names()),
    }
    for key in ("torch", "cuda", "python", "platform"):
        axis = schema["properties"][key]
        if key in names:
            axis["items"] = _known(axis["items"], names[key])
        one = axis["items"]
        schema["properties"][key] = {
            name: axis.pop(name) for name in ("title", "description", "default") if name in axis
        } | {"anyOf": [axis, one]}
    for key, known in names.items():
        entry = schema["$defs"]["CellEntry"]["properties"]
        entry[key] = _known(entry[key], known)
    return schema


def _known(form: dict[str, Any], names: list[str]) -> dict[str, Any]:
    rest = {key: form[key] for key in ("title", "description") if key in form}
    shape = {key: value for key, value in form.items() if key not in rest}
    return rest | {"anyOf": [{"enum": names}, shape]}
