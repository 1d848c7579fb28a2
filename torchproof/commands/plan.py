"""`plan`: not written yet."""

from torchproof.errors import HostError


def run() -> None:
    """Not written yet."""
    raise HostError("plan: not written yet")
