"""What a loader's statistics say of its workers and of the network, and what remote storage gives without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.loaders.run.metrics.stats import LoaderStats

_GAIN = 1.2  # times as many bytes: more requests are worth it
_QUEUEING = 2.0  # times as long as a request alone: the requests wait for each other, not for the distance


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


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Say what a loader fetched from remote storage while it was measured: answered requests and their bytes."""

    requests_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Traffic | None:
        """Return the traffic over all rounds; None for data on this machine."""
        elapsed_s, requests, num_bytes = (
            sum(span.grown(name) for span in spans) for name in ("elapsed_s", "requests", "fetched_bytes")
        )
        if not elapsed_s or not any(span.end.requests for span in spans):
            return None
        return cls(requests_per_s=requests / elapsed_s, bytes_per_s=num_bytes / elapsed_s)


@dataclass(frozen=True, kw_only=True)
class StoreTime:
    """Say what remote storage gives if nothing is done with its bytes, in medians over the rounds.

    Attributes:
        requests: number of requests under way at a time, the loader's own.
        first_byte_s: seconds to the first byte of a request that is alone.
        lone_s: seconds of a request that is alone, with all of its bytes.
        request_s: seconds of a request among so many.
        images_per_request: images that one request brings, on average.
        bytes_per_s: bytes that come with so many requests.
        more_requests: a larger number that was tried, None if it was not.
        more_bytes_per_s: bytes that came with these.
        under_way: requests that were under way with `requests`, of all remote sources together; 0 for `requests`.
        share: share of the samples that are remote.
    """

    requests: int
    first_byte_s: float
    lone_s: float
    request_s: float
    images_per_request: float
    bytes_per_s: float
    more_requests: int | None = None
    more_bytes_per_s: float | None = None
    under_way: int = 0
    share: float = 1.0

    @property
    def is_queueing(self) -> bool:
        """Whether requests slow each other down, so that more of them bring no more."""
        return self.request_s > _QUEUEING * self.lone_s

    @property
    def gains_by_more(self) -> bool:
        """Whether more requests have brought clearly more."""
        return self.more_bytes_per_s is not None and self.more_bytes_per_s > _GAIN * self.bytes_per_s

    @property
    def bytes_per_request(self) -> float:
        """Bytes that one request brings, on average."""
        return self.bytes_per_s * self.request_s / (self.under_way or self.requests)
