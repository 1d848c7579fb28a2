"""One fixed order for everything in a report, so that equal runs give equal files. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel

from torchproof.report import words
from torchproof.report.models import CellModel, DeclaredHostModel, HostModel

_Model = TypeVar("_Model", bound=BaseModel)


def key(model: BaseModel) -> str:
    """Return a sort key that is total, and equal only for equal values."""
    return model.model_dump_json(by_alias=True)


def unique(models: Iterable[_Model]) -> list[_Model]:
    """Drop duplicates, by value."""
    return list({key(model): model for model in models}.values())


def order_cells(cells: Iterable[CellModel]) -> list[CellModel]:
    """Sort by torch, then CUDA, then name."""
    return sorted(cells, key=lambda c: (words.order(c.torch), words.order(c.cuda), c.id))


def order_machines(machines: Iterable[HostModel]) -> list[HostModel]:
    """Sort machines without duplicates, the most capable first."""
    return sorted(unique(machines), key=capability, reverse=True)


def capability(host: HostModel) -> tuple[int, str]:
    """Return a sort key: more GPUs can prove more."""
    return (len(host.gpus), key(host))


def order_hosts(hosts: Iterable[DeclaredHostModel]) -> list[DeclaredHostModel]:
    """Combine the answers for equal hosts; sort hosts by name and answers by cell."""
    groups: dict[tuple[str, str, str, int], list[DeclaredHostModel]] = defaultdict(list)
    for host in hosts:
        groups[host.name, host.driver, host.gpu, host.count].append(host)
    return [
        DeclaredHostModel(
            name=name,
            driver=driver,
            gpu=gpu,
            count=count,
            answers=sorted(unique(answer for host in group for answer in host.answers), key=key),
        )
        for (name, driver, gpu, count), group in sorted(groups.items())
    ]
