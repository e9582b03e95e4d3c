"""Short measurements of candidates: images/s, and what a loader takes of the machine while it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.bench.measure.clock import Rate
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.measure.resources import ResourceWatch, tree_memory_mb
from penstock.bench.record.record import BenchSettings
from penstock.bench.search.candidate import Candidate, LoaderOpener
from penstock.bench.search.tuning import Trial

MIN_SECONDS = 0.625  # four fifths of it, half a second, count


def trial_seconds(seconds: float) -> float:
    """The length of a short measurement, where a whole one takes `seconds`."""
    return max(seconds / 4, min(seconds, MIN_SECONDS))


def mean_rate(rate: Rate) -> float:
    """Images/s over all windows: in a short measurement these hold a batch or two each, and batches come in bursts."""
    return rate.images / rate.seconds


class Trials:
    """Opens candidates for short measurements."""

    def __init__(self, opener: LoaderOpener, settings: BenchSettings) -> None:
        self._opener, self._device = opener, settings.device
        self.seconds = trial_seconds(settings.seconds)
        self._server_mb: float | None = None

    @contextmanager
    def opened(self, candidate: Candidate) -> Iterator[Callable[[], Trial]]:
        """The candidate as a context in which calling what it gives measures it once; see tuning.Opened.

        memory_mb: what the process tree took beyond what it had when the candidate was opened, and for processes as
        workers their fork server, which stays for the next ones.
        """
        standing = self._fork_server_mb(candidate) if candidate.forks else 0.0
        before = tree_memory_mb()
        with self._opener.open(candidate) as loader:
            yield lambda: self._measure(loader, before - standing)

    def _measure(self, loader: Any, had_mb: float) -> Trial:
        with ResourceWatch(self.seconds, device=self._device) as watch:
            rate = loader_rate(watch.watched(loader), seconds=self.seconds, device=self._device)
        found = watch.resources()
        return Trial(
            images_per_s=mean_rate(rate),
            cpu_cores=found.cpu_cores if found else None,
            memory_mb=max(0.0, found.memory_mb - had_mb) if found and found.memory_mb is not None else None,
        )

    def _fork_server_mb(self, candidate: Candidate) -> float:
        """MB that the fork server holds: measured once, at the start of the first worker."""
        if self._server_mb is None:
            before = tree_memory_mb()
            with self._opener.open(candidate.with_knob("workers", 1)) as loader:
                next(iter(loader))
            self._server_mb = max(0.0, tree_memory_mb() - before)
        return self._server_mb
