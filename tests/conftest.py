"""How tests are dealt to workers, and that Ctrl-C reaches what they start."""

from __future__ import annotations

import signal

import pytest

LARGE = "large-images"


def pytest_configure() -> None:
    # A shell that starts the tests in the background has SIGINT ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a worker one file at a time, and one worker all tests of large images.

    Those share images by the names of real cells; two at a time would need twice the disk. They
    take longest and come first, but for the largest, which comes when the others can be removed.
    The quickest come last, so that no worker waits long for another.
    """
    for item in items:
        large = {"docker", "real_torch"} <= {mark.name for mark in item.iter_markers()}
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(LARGE if large else str(item.path)))
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool, bool]:
    group = item.get_closest_marker("xdist_group")
    return (
        group is None or LARGE not in group.args,
        "unit" in item.path.parts,
        item.get_closest_marker("largest") is not None,
    )
