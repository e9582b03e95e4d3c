"""A progress bar for each epoch of a training run, on standard error if that is a terminal."""

from __future__ import annotations

from types import TracebackType

from penstock.bench.record.clock import Stopwatch
from penstock.loaders.system.progress_bar import ProgressBar


class EpochBar:
    """Show the progress of an epoch, its images/s on this rank and the time left; as a context, removes the bar.

    num_epochs: number of epochs of the run. shown: False on ranks that show nothing.
    """

    def __init__(self, num_epochs: int, *, shown: bool = True) -> None:
        self._num_epochs, self._shown = num_epochs, shown
        self._bar: ProgressBar | None = None

    def step(self, epoch: int, done: int, total: int, images: int) -> None:
        """Count a step with `images` images: number `done` of `total` of the epoch."""
        if not self._shown:
            return
        if self._bar is None:
            self._bar = ProgressBar(f"epoch {epoch + 1} of {self._num_epochs}", total).__enter__()
            self._watch, self._images = Stopwatch(), -images  # only the end of the first step is known
        self._images += images
        rate = f"{self._images / self._watch.seconds:,.0f} images/s" if self._images else ""
        self._bar.show(done, details=rate)

    def end(self) -> None:
        """Remove the bar before a line is printed; the next step starts a new one."""
        if self._bar is not None:
            self._bar.__exit__()
            self._bar = None

    def __enter__(self) -> EpochBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
