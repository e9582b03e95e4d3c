"""Worker and network figures from a loader's statistics, and the rate of remote storage without the loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.loaders.run.metrics.stats import LoaderStats

_GAIN = 1.2  # more requests are worth it if they fetch this many times as many bytes
_QUEUEING = 2.0  # requests that take this many times as long as a single one wait for each other


class Span(NamedTuple):
    """Hold the statistics of a loader at the start and end of a measurement, without its warm-up."""

    begin: LoaderStats
    end: LoaderStats

    def grown(self, name: str) -> float:
        """Return the growth of the statistic `name`."""
        return float(getattr(self.end, name) - getattr(self.begin, name))

    @property
    def queued(self) -> float:
        """Number of waiting finished batches, summed over the consumed batches."""
        sums = [stats.queue_depth * stats.batches for stats in self]
        return sums[1] - sums[0]


@dataclass(frozen=True, kw_only=True)
class WorkerTime:
    """Hold how the workers spent their time.

    Attributes:
        busy: share of the workers' time spent making batches, 0 to 1.
        read_share: share of that time spent inside the source, 0 to 1.
        worker_s: seconds of one worker's time per image.
        queue_depth: mean number of finished batches waiting for the consumer.
    """

    busy: float
    read_share: float
    worker_s: float
    queue_depth: float

    @classmethod
    def of(cls, spans: Sequence[Span], workers: int) -> WorkerTime | None:
        """Return the worker time over all rounds; None if unknown, as for engines that do not measure it."""
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
    """Hold a loader's traffic with remote storage during a measurement: answered requests and their bytes."""

    requests_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Traffic | None:
        """Return the traffic over all rounds; None for local data."""
        elapsed_s, requests, num_bytes = (
            sum(span.grown(name) for span in spans) for name in ("elapsed_s", "requests", "fetched_bytes")
        )
        if not elapsed_s or not any(span.end.requests for span in spans):
            return None
        return cls(requests_per_s=requests / elapsed_s, bytes_per_s=num_bytes / elapsed_s)


@dataclass(frozen=True, kw_only=True)
class StoreTime:
    """Hold the rates of remote storage without processing its bytes, as medians over the rounds.

    Attributes:
        requests: the loader's number of concurrent requests.
        first_byte_s: seconds to the first byte of a single request.
        lone_s: seconds of a whole single request.
        request_s: seconds of a request among `requests`.
        images_per_request: mean number of images per request.
        bytes_per_s: bytes per second with `requests`.
        more_requests: a larger number that was tried, or None.
        more_bytes_per_s: bytes per second with `more_requests`.
        under_way: concurrent requests to all remote sources together with `requests`; 0 means `requests`.
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
        """Whether requests slow each other down, so that more of them would not help."""
        return self.request_s > _QUEUEING * self.lone_s

    @property
    def gains_by_more(self) -> bool:
        """Whether more requests were clearly faster."""
        return self.more_bytes_per_s is not None and self.more_bytes_per_s > _GAIN * self.bytes_per_s

    @property
    def bytes_per_request(self) -> float:
        """Mean number of bytes per request."""
        return self.bytes_per_s * self.request_s / (self.under_way or self.requests)
