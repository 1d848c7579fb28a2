"""The progress of a long run: a live line for every cell on a terminal, plain lines in CI."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Progress:
    """Shows what each cell is doing. Safe for several threads; use it as a context manager.

    `say(cell, text)` replaces a cell's line; `done(cell, text)` prints its final line, which stays.
    A terminal gets spinners; anything else one line per call, with the seconds since the start.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._live: RichProgress | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.fields[cell]}", markup=False),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, cell: str, text: str) -> None:
        """Show what a cell (or, with an empty name, the run) is doing now."""
        with self._lock:
            if self._live is None:
                self._print(cell, text)
            elif cell in self._tasks:
                self._live.update(self._tasks[cell], description=_one_line(text))
            else:
                self._tasks[cell] = self._live.add_task(_one_line(text), total=None, cell=cell)

    def done(self, cell: str, text: str) -> None:
        """Show how a step of a cell ended."""
        with self._lock:
            if self._live is not None and cell in self._tasks:
                self._live.remove_task(self._tasks.pop(cell))
            self._print(cell, text)

    def _print(self, cell: str, text: str) -> None:
        seconds = time.monotonic() - self._started
        subject = f"{cell}: " if cell else ""
        self._console.print(f"[{seconds:6.1f} s] {subject}{text}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:120]
