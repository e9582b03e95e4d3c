"""A progress bar for each epoch of a training run, on standard error if that is a terminal."""

from __future__ import annotations

from types import TracebackType

from penstock.bench.record.clock import Stopwatch
from penstock.loaders.system.progress_bar import ProgressBar


class EpochBar:
    """Show how far an epoch is, its images/s on this rank and the time left; a context, which takes the bar away.

    num_epochs: of the run. shown: False on ranks that show nothing.
    """

    def __init__(self, num_epochs: int, *, shown: bool = True) -> None:
        self._num_epochs, self._shown = num_epochs, shown
        self._bar: ProgressBar | None = None

    def step(self, epoch: int, done: int, total: int, images: int) -> None:
        """Count a step with so many images: number `done` of `total` of the epoch."""
        if not self._shown:
            return
        if self._bar is None:
            self._bar = ProgressBar(f"epoch {epoch + 1} of {self._num_epochs}", total).__enter__()
            self._watch, self._images = Stopwatch(), -images  # of the first step the end alone is known
        self._images += images
        rate = f"{self._images / self._watch.seconds:,.0f} images/s" if self._images else ""
        self._bar.show(done, details=rate)

    def end(self) -> None:
        """Take the bar away, before a line is printed; the next step begins another."""
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None

    def __enter__(self) -> EpochBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
