"""Short measurements of candidates: images/s, and the loader's CPUs and memory meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.probe.search.candidate import Candidate, LoaderOpener
from penstock.bench.record.loader_rate import loader_rate
from penstock.bench.record.resources import ResourceWatch, release_unused_memory, tree_memory_mb
from penstock.bench.record.settings import BenchSettings
from penstock.loaders.run.workers.launch import worker_context

MIN_SECONDS = 0.625  # four fifths of it, half a second, are measured


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Hold one short measurement of a candidate: mean rate, busy CPUs, MB of memory; None if unknown."""

    images_per_s: float
    cpu_cores: float | None = None
    memory_mb: float | None = None

    @classmethod
    def median(cls, trials: Sequence[Trial]) -> Trial:
        """Return the median of each figure over several trials."""
        cores = [trial.cpu_cores for trial in trials if trial.cpu_cores is not None]
        sizes = [trial.memory_mb for trial in trials if trial.memory_mb is not None]
        return cls(
            images_per_s=statistics.median(trial.images_per_s for trial in trials),
            cpu_cores=statistics.median(cores) if cores else None,
            memory_mb=statistics.median(sizes) if sizes else None,
        )


def trial_seconds(seconds: float) -> float:
    """Return the length of a trial in seconds if a whole measurement takes `seconds`."""
    return max(seconds / 4, min(seconds, MIN_SECONDS))


class TrialMeter:
    """Measures candidates in short trials, each opened only for its trial.

    An open loader would prefetch batches while another is measured: it would slow down the other, and its own next
    trial would begin with finished batches.
    """

    def __init__(self, opener: LoaderOpener, settings: BenchSettings) -> None:
        self._opener, self._device = opener, settings.device
        self.seconds = trial_seconds(settings.seconds)
        self._server_mb: float | None = None

    def measure(self, candidate: Candidate) -> Trial:
        """Open, measure and close the candidate. Raises LoaderError if it cannot be opened or read.

        Its memory is the growth of the process tree. For worker processes it includes the fork server, which stays
        alive for later candidates.
        """
        server_mb = self._fork_server_mb() if candidate.has_processes else 0.0
        release_unused_memory()
        before = tree_memory_mb()
        with self._opener.open(candidate) as loader:
            return self._measure(loader, before - server_mb)

    def _measure(self, loader: Any, had_mb: float) -> Trial:
        with ResourceWatch(self.seconds, device=self._device) as watch:
            rate = loader_rate(watch.watched(loader), seconds=self.seconds, device=self._device)
        found = watch.resources()
        return Trial(
            images_per_s=rate.images / rate.seconds,  # windows contain only one or two batches, which come in bursts
            cpu_cores=found.cpu_cores if found else None,
            memory_mb=max(0.0, found.memory_mb - had_mb) if found and found.memory_mb is not None else None,
        )

    def _fork_server_mb(self) -> float:
        """Return the memory of the fork server in MB; the first call starts it."""
        if self._server_mb is None:
            before = tree_memory_mb()
            worker_context("forkserver")
            self._server_mb = max(0.0, tree_memory_mb() - before)
        return self._server_mb
