"""Shows how far a build is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from penstock.pipelines.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S = 30.0
_LOOKS = 5  # at a lock, before its holder is shown


class BuildProgress:
    """Take what a build reports while it runs, and show nothing of it."""

    def begin(self, path: bytes, samples: int, done: int) -> None:
        """Begin a file of so many samples, of which some were there already."""

    def advance(self, samples: int, num_bytes: int) -> None:
        """Count so many more samples that are stored, in so many bytes."""

    def stage(self, text: str) -> None:
        """Say what is done now, after the samples."""

    def waiting(self, owner: str) -> None:
        """Say that another process is building the file; called again and again."""

    def note(self, text: str) -> None:
        """Say something that the user should know, perhaps more than once."""


class BuildDisplay(BuildProgress):
    """Show a build of `samples` in all files together on stderr; a context manager: the bar goes away at the end."""

    def __init__(self, samples: int) -> None:
        self._total, self._done, self._built, self._bytes = samples, 0, 0, 0
        self._text = ""
        self._noted: set[str] = set()
        self._looks: dict[str, int] = {}
        self._line_s = time.monotonic()
        self._first: tuple[float, int] | None = None  # when the first images came, how many; workers start slowly
        self._bar: Progress | None = None

    def begin(self, path: bytes, samples: int, done: int) -> None:
        if done:
            self._say(f"going on with {printable(path)}: {done:,} of {samples:,} images are there already")
        self._done += done
        self._text = "building"
        self._show()

    def advance(self, samples: int, num_bytes: int) -> None:
        self._done += samples
        self._built += samples
        self._bytes += num_bytes
        self._first = self._first or (time.monotonic(), self._built)
        self._show()

    def stage(self, text: str) -> None:
        self._text = text
        self._show()

    def waiting(self, owner: str) -> None:
        self._looks[owner] = self._looks.get(owner, 0) + 1
        if self._looks[owner] > _LOOKS:  # one that only looks whether there is anything to do is soon done
            self.note(f"waiting: {owner} is building it")

    def note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._say(text)

    def _show(self) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            self._bar = self._bar or _start(self._total)
            self._bar.update(
                self._bar.task_ids[0],
                completed=self._done,
                description=self._text,
                rate=self._rate(),
                megabytes=self._bytes / 1e6,
            )
        elif time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            line = f"{self._text}: {self._done:,} of {self._total:,} images, {self._bytes / 1e6:,.0f} MB written"
            if rate := self._rate():  # not known after the first images, whose time holds the start of workers
                line += f", {rate:,.0f} images/s, {(self._total - self._done) / rate / 60:,.0f} min left"
            self._say(line)

    def _rate(self) -> float:
        start_s, not_counted = self._first or (0.0, self._built)
        return (self._built - not_counted) / max(time.monotonic() - start_s, 1e-9)

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        elif sys.stderr is not None:
            print(f"penstock: {line}", file=sys.stderr, flush=True)

    def __enter__(self) -> BuildDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _start(total: int) -> Progress:
    # Imported here: a cache that is there already shows nothing.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} images/s, {task.fields[megabytes]:,.0f} MB,", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("building", total=total, rate=0.0, megabytes=0.0)
    bar.start()
    return bar
