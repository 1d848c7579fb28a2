"""`verify`: not written yet."""

from torchproof.errors import HostError


def run() -> None:
    """Not written yet."""
    raise HostError("verify: not written yet")
