"""A progress bar on standard error if that is a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

SHOW_AFTER_S = 1.0  # for scans and copies, most of them shorter


def has_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


class ProgressBar:
    """A context manager that shows the progress of a task. The bar disappears at its end.

    what: text before the bar. total: total amount of work, None while it is unknown.
    show_after_s: a task that takes less time is not shown.
    """

    def __init__(self, what: str, total: int | None = None, *, show_after_s: float = 0.0) -> None:
        self._what, self._done, self._total, self._details = what, 0, total, ""
        self._show_at_s = time.monotonic() + show_after_s
        self._bar: Progress | None = None

    def show(self, done: int, total: int | None = None, what: str | None = None, *, details: str = "") -> None:
        """Set the finished and the total amount of work, the text before the bar if it has changed, and details."""
        self._done, self._details = done, details
        self._total = self._total if total is None else total
        self._what = what or self._what
        self._update()

    def advance(self, more: int = 1) -> None:
        """Add `more` to the finished work."""
        self.show(self._done + more)

    def print(self, line: str) -> None:
        """Print a line on standard error, above the bar."""
        if self._bar is not None:
            self._bar.console.print(line)
        elif sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)

    def _update(self) -> None:
        if self._bar is None:
            if not has_terminal() or time.monotonic() < self._show_at_s:
                return
            self._bar = _start(self._what, self._total)
        self._bar.update(
            self._bar.task_ids[0],
            completed=self._done,
            total=self._total,
            description=self._what,
            details=self._details,
        )

    def __enter__(self) -> ProgressBar:
        self._update()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _start(what: str, total: int | None) -> Progress:
    # Imported here, because most tasks are finished before the bar is shown.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[details]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        transient=True,
    )
    bar.add_task(what, total=total, details="")
    bar.start()
    return bar
