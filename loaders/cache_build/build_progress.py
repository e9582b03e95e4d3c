"""Shows the progress of a build: a bar on a terminal, elsewhere a plain line every LINE_EVERY_S."""

from __future__ import annotations

import sys
import time

from penstock.loaders.system.progress_bar import ProgressBar, has_terminal
from penstock.pipelines.errors import printable

LINE_EVERY_S = 30.0
_LOOKS = 5  # attempts to take a lock before its holder is shown


class BuildProgress:
    """Receives the progress of a build and shows nothing."""

    def begin(self, path: bytes, samples: int, done: int) -> None:
        """Begin a file of `samples` samples; `done` of them were stored earlier."""

    def advance(self, samples: int, num_bytes: int) -> None:
        """Count newly stored samples and their bytes."""

    def stage(self, text: str) -> None:
        """Report the stage after the samples, such as "verifying"."""

    def waiting(self, owner: str) -> None:
        """Report that another process is building the file; called repeatedly."""

    def note(self, text: str) -> None:
        """Report something that the user should know; may be called more than once with the same text."""


class BuildDisplay(BuildProgress):
    """Shows a build of `samples` samples, in all files together, on stderr; a context manager that removes the bar."""

    def __init__(self, samples: int) -> None:
        self._total, self._done, self._built, self._bytes = samples, 0, 0, 0
        self._text = ""
        self._noted: set[str] = set()
        self._looks: dict[str, int] = {}
        self._line_s = time.monotonic()
        self._first: tuple[float, int] | None = None  # time and number of the first images; workers start slowly
        self._bar: ProgressBar | None = None

    def begin(self, path: bytes, samples: int, done: int) -> None:
        if done:
            self._say(f"continuing {printable(path)}: {done:,} of {samples:,} images are already there")
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
        if self._looks[owner] > _LOOKS:  # a process that only checks for work soon releases the lock
            self.note(f"waiting: {owner} is building it")

    def note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._say(text)

    def _show(self) -> None:
        if has_terminal():
            self._bar = self._bar or ProgressBar(self._text, self._total)
            details = f"{self._done}/{self._total}, {self._rate():,.0f} images/s, {self._bytes / 1e6:,.0f} MB,"
            self._bar.show(self._done, what=self._text, details=details)
        elif time.monotonic() - self._line_s >= LINE_EVERY_S:
            self._line_s = time.monotonic()
            line = f"{self._text}: {self._done:,} of {self._total:,} images, {self._bytes / 1e6:,.0f} MB written"
            if rate := self._rate():  # unknown after the first images: their time includes the start of the workers
                line += f", {rate:,.0f} images/s, {(self._total - self._done) / rate / 60:,.0f} min left"
            self._say(line)

    def _rate(self) -> float:
        start_s, not_counted = self._first or (0.0, self._built)
        return (self._built - not_counted) / max(time.monotonic() - start_s, 1e-9)

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.print(line)
        elif sys.stderr is not None:
            print(f"penstock: {line}", file=sys.stderr, flush=True)

    def __enter__(self) -> BuildDisplay:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)
