"""Shows on a terminal how far a scan is, when it takes more than a second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from penstock.pipelines.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress

SHOW_AFTER_S = 1.0


class ScanProgress:
    """Show the number of images found so far, once SHOW_AFTER_S have passed, on stderr if it is a terminal.

    A context manager: what it shows goes away at the end.
    """

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._show_at_s = time.monotonic() + SHOW_AFTER_S
        self._display: Progress | None = None

    def __call__(self, num_images: int) -> None:
        if self._display is None and time.monotonic() >= self._show_at_s and sys.stderr and sys.stderr.isatty():
            self._display = _start(self._root)
        if self._display is not None:
            self._display.update(self._display.task_ids[0], completed=num_images)

    def __enter__(self) -> ScanProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()


def _start(root: bytes) -> Progress:
    # Imported here: most scans are over before they would show anything.
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    display = Progress(
        SpinnerColumn(),
        TextColumn("scanning: {task.completed:,.0f} images in {task.description}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    display.add_task(printable(root), total=None)
    display.start()
    return display
