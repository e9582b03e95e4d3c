"""Measures how the loader's workers spend their time, which separates a limit before them from one behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.loaders.metrics.stats import LoaderStats


class Span(NamedTuple):
    """Hold the statistics of a loader at the begin and at the end of a measurement, after its warm-up."""

    begin: LoaderStats
    end: LoaderStats

    def grown(self, name: str) -> float:
        """Return by how much the statistic `name` grew."""
        return float(getattr(self.end, name) - getattr(self.begin, name))

    @property
    def queued(self) -> float:
        """Finished batches found waiting, summed over the batches taken."""
        sums = [stats.queue_depth * stats.batches for stats in self]
        return sums[1] - sums[0]


@dataclass(frozen=True, kw_only=True)
class WorkerTime:
    """Say how the workers spent their time.

    Attributes:
        busy: share of the workers' time spent making batches, 0 to 1.
        read_share: share of that spent inside the source, 0 to 1.
        worker_s: seconds of one worker's time per image.
        queue_depth: finished batches that the consumer found waiting, on average.
    """

    busy: float
    read_share: float
    worker_s: float
    queue_depth: float

    @classmethod
    def of(cls, spans: Sequence[Span], workers: int) -> WorkerTime | None:
        """Return the worker time over all rounds; None where nothing is known, as of engines that count no time."""
        names = ("elapsed_s", "produce_s", "read_s", "images", "batches")
        elapsed_s, produce_s, read_s, images, batches = (sum(span.grown(name) for span in spans) for name in names)
        if not (elapsed_s > 0 and produce_s > 0 and images):
            return None
        return cls(
            busy=min(1.0, produce_s / (max(1, workers) * elapsed_s)),
            read_share=read_s / produce_s,
            worker_s=produce_s / images,
            queue_depth=sum(span.queued for span in spans) / batches,
        )

    @property
    def read_s(self) -> float:
        """Seconds of one worker's time per image inside the source."""
        return self.read_share * self.worker_s
