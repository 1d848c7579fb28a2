"""cell → lock. uv resolves; this module chooses wheels, sorts them into layers and checks them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchproof.errors import CellError, IntegrityError
from torchproof.index.download import sha256_of
from torchproof.index.indexes import Indexes
from torchproof.index.uv import Resolved, Target, WheelFile, compile_requirements
from torchproof.index.wheel_store import WheelStore
from torchproof.index.wheel_tags import target_tags
from torchproof.index.wheelhouse import wheelhouse_torch
from torchproof.model.cell import Cell
from torchproof.model.lock import (
    PYPI,
    WHEELHOUSE,
    LayerName,
    Lock,
    LockedBase,
    LockedWheel,
    Override,
)
from torchproof.upstream.facts import Facts

_CUDNN = re.compile(r"nvidia-cudnn(-cu\d+)?")
_NCCL = re.compile(r"nvidia-nccl(-cu\d+)?")
CUDART = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_CUDA = re.compile(r"(nvidia|cuda)-.+")
_ORDER = {name: place for place, name in enumerate(LayerName)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolver:
    """What resolving needs beside the cell."""

    facts: Facts
    indexes: Indexes
    store: WheelStore

    def resolve(self, cell: Cell, alias: str, *, like: Lock | None = None) -> Lock:
        """Make the lock of a cell whose torch comes from the index `alias`.

        `like` is the lock of a sibling (same torch, CUDA, Python and platform): its versions are
        taken over, so that both share layers. Raises CellError if no wheels fit or they are not
        what the cell says, IndexUnreachableError, IntegrityError.
        """
        torch = self._torch_requirement(cell, alias)
        pins = _pins(like.wheels) if like else ()
        stock = self._compile(cell, alias, [torch], constraints=pins)
        overrides = _overrides(cell, stock)
        chosen = stock
        if overrides:
            kept = _pins(stock, without={override.name for override in overrides})
            chosen = self._compile(
                cell,
                alias,
                [torch],
                constraints=kept,
                overrides=[f"{item.name}=={item.chosen}" for item in overrides],
            )
        everything = chosen
        if cell.extras:
            self._refuse_sources(cell, alias)
            everything = self._compile(
                cell,
                alias,
                [torch, *cell.extras],
                constraints=_pins(chosen),
                overrides=[f"{item.name}=={item.chosen}" for item in overrides],
            )
        core = {package.name for package in chosen}
        wheels = [self._lock_wheel(cell, alias, package, core) for package in everything]
        lock = self._assemble(cell, wheels, overrides)
        _check(cell, lock)
        return lock

    def _torch_requirement(self, cell: Cell, alias: str) -> str:
        if alias == PYPI:
            return f"torch==={cell.torch}"  # the plain wheel, whatever else a mirror has
        if alias != WHEELHOUSE:
            # With a wheelhouse, name the build: its folder may have others of the same version.
            return f"torch=={cell.torch}" + (f"+{cell.cuda}" if cell.wheelhouse else "")
        file = wheelhouse_torch(cell)
        if file is None:
            raise CellError(f"{cell.wheelhouse} has no wheel of torch for {cell.id}")
        return f"torch @ {file.as_uri()}"

    def _refuse_sources(self, cell: Cell, alias: str) -> None:
        """Refuse an extra whose newest version has no wheel; an ancient one would be taken."""
        for package in self._compile(cell, alias, cell.extras, newest=True):
            try:
                best_wheel(package, cell)
            except CellError as error:
                raise CellError(
                    f"{error.message}: only its source, or wheels for other targets",
                    fix="pin a version that has a wheel, or build one and name its folder as "
                    "`wheelhouse:`",
                ) from None

    def _compile(
        self,
        cell: Cell,
        alias: str,
        requirements: Sequence[str],
        *,
        constraints: Sequence[str] = (),
        overrides: Sequence[str] = (),
        newest: bool = False,
    ) -> tuple[Resolved, ...]:
        named = self.indexes.url(alias) if alias not in (PYPI, WHEELHOUSE) else None
        house = cell.wheelhouse
        return compile_requirements(
            requirements,
            Target(python=cell.python, platform=cell.platform),
            default_index=self.indexes.url(PYPI),
            named_index=named,
            from_named=self.facts.pytorch_packages if named else (),
            constraints=constraints,
            overrides=overrides,
            find_links=house if house and house.is_dir() else None,
            dependencies=not newest,
            wheels_only=not newest,
        )

    def _lock_wheel(self, cell: Cell, alias: str, package: Resolved, core: set[str]) -> LockedWheel:
        file = best_wheel(package, cell)
        if "://" not in file.url or file.url.startswith("file:"):
            index = WHEELHOUSE
        elif alias not in (PYPI, WHEELHOUSE) and package.name in self.facts.pytorch_packages:
            index = alias
        else:
            index = PYPI
        sha256, size = file.sha256, file.size
        if index == WHEELHOUSE and cell.wheelhouse:
            own = cell.wheelhouse / file.filename
            sha256, size = sha256_of(own), own.stat().st_size
        elif sha256 is None:
            _, sha256, size = self.store.adopt(file.url, file.filename)
        elif size is None:
            size = self.store.measure(file.url)
        if size is None:
            _, found, size = self.store.adopt(file.url, file.filename)
            if found != sha256:
                raise IntegrityError(
                    f"{cell.id}: {file.filename} has sha256 {found}, the index says {sha256}"
                )
        return LockedWheel(
            name=package.name,
            version=str(parse_wheel_filename(file.filename)[1]),
            filename=file.filename,
            sha256=sha256,
            size=size,
            index=index,
            layer=layer_of(package.name, core),
        )

    def _assemble(
        self, cell: Cell, wheels: Iterable[LockedWheel], overrides: tuple[Override, ...]
    ) -> Lock:
        ordered = tuple(sorted(wheels, key=lambda wheel: (_ORDER[wheel.layer], wheel.name)))
        release = self.facts.release(cell.torch)
        build = release.builds.get(cell.cuda) if release else None
        return Lock(
            cell=cell.id,
            torch=cell.torch,
            cuda=cell.cuda,
            cudnn=_version(ordered, _CUDNN),
            nccl=_version(ordered, _NCCL),
            triton=_version(ordered, re.compile("triton")) or None,
            python=cell.python,
            platform=cell.platform,
            base=LockedBase(
                image=cell.base.image,
                bootstrap=cell.base.bootstrap,
                packages=cell.base.packages,
            ),
            wheels=ordered,
            overrides=overrides,
            gpus=cell.gpus,
            archs=build.archs_on(cell.platform) if build else (),
            driver_floor=self.facts.driver_floor(cell.cuda),
            compile=cell.compile,
            rdma=cell.rdma,
        )


def layer_of(name: str, core: set[str]) -> LayerName:
    """Return the layer of a wheel; `core` are the names that torch itself needs."""
    if name not in core:
        return LayerName.EXTRAS
    if _CUDNN.fullmatch(name):
        return LayerName.CUDNN
    if _NCCL.fullmatch(name):
        return LayerName.NCCL
    return LayerName.CUDA if _CUDA.fullmatch(name) else LayerName.TORCH


def best_wheel(package: Resolved, cell: Cell) -> WheelFile:
    """Choose the wheel that an installer would take. Raises CellError if none fits the cell."""
    rank = {tag: place for place, tag in enumerate(target_tags(cell.python, cell.platform))}
    fitting = []
    for file in package.wheels:
        try:
            _, _, build, tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        places = [rank[tag] for tag in tags if tag in rank]
        if places:
            fitting.append((min(places), [-number for number in build[:1]], file.filename, file))
    if not fitting:
        raise CellError(
            f"{cell.id}: {package.name} {package.version} has no wheel for Python {cell.python} "
            f"on {cell.platform}",
            fix="take another version of it, or build a wheel and name its folder as `wheelhouse:`",
        )
    return min(fitting)[-1]


def _pins(
    packages: Iterable[Resolved | LockedWheel], without: Iterable[str] = ()
) -> tuple[str, ...]:
    dropped = {"torch", *without}
    return tuple(
        f"{package.name}=={package.version}" for package in packages if package.name not in dropped
    )


def _overrides(cell: Cell, stock: tuple[Resolved, ...]) -> tuple[Override, ...]:
    found = []
    for wanted, pattern, title in ((cell.cudnn, _CUDNN, "cuDNN"), (cell.nccl, _NCCL, "NCCL")):
        if wanted is None:
            continue
        pinned = [package for package in stock if pattern.fullmatch(package.name)]
        if not pinned:
            raise CellError(
                f"{cell.id}: torch {cell.torch} pins no {title} wheel that could be replaced",
                fix=f"drop the {title} override of this cell",
            )
        found.append(Override(name=pinned[0].name, pinned=pinned[0].version, chosen=wanted))
    return tuple(found)


def _version(wheels: Iterable[LockedWheel], pattern: re.Pattern[str]) -> str:
    return next((wheel.version for wheel in wheels if pattern.fullmatch(wheel.name)), "")


def _check(cell: Cell, lock: Lock) -> None:
    """Compare what came with what the cell says; an index may serve another build than its name."""
    torch = next(wheel for wheel in lock.wheels if wheel.name == "torch")
    local = Version(torch.version).local
    runtime = _version(lock.wheels, CUDART)
    other = ""
    if local not in (None, cell.cuda):
        other = f"its version is {torch.version}"
    elif runtime and not runtime.startswith(f"{cell.cuda_version}."):
        other = f"it needs the CUDA runtime {runtime}"
    if other:
        raise CellError(
            f"{cell.id}: the torch {cell.torch} of `{torch.index}` is not {cell.cuda}: {other}",
            fix="check `indexes:` in matrix.yaml, or what the index serves",
        )
