"""LoaderStats: a loader's times for waiting, producing and reading, also as metrics for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_int

SHORTEST_WAIT_S = 1e-6  # waits are counted in classes, each 1.15 times as long as the previous one
_COUNTERS = ("batches", "images", "replaced", "repaired", "wait_s", "produce_s", "read_s", "requests", "fetched_bytes")
_COUNTED = ("batches", "images", "replaced", "repaired", "images_per_s", "queue_depth")
_MEASURED = ("elapsed_s", "wait_s", "produce_s", "read_s", "requests", "fetched_bytes")
WAIT_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
CLASSES_PER_DECADE, WAIT_CLASSES = 16, 144  # up to 1,000 s


def wait_class(seconds: float) -> int:
    """Return the class of a wait: 0 up to SHORTEST_WAIT_S, WAIT_CLASSES for the longest."""
    if seconds <= SHORTEST_WAIT_S:
        return 0
    return min(WAIT_CLASSES, math.ceil(math.log10(seconds / SHORTEST_WAIT_S) * CLASSES_PER_DECADE))


@dataclass(frozen=True)
class LoaderStats:
    """Counts and times since the loader was made.

    Attributes:
        batches: batches delivered, or left out because they had no samples.
        images: images delivered.
        wait_s: seconds that the consumer waited for batches.
        produce_s: seconds of worker time spent on the delivered batches.
        read_s: seconds of produce_s spent inside the source, reading.
        elapsed_s: seconds from the first request for a batch to the latest delivery.
        queue_depth: number of finished batches that were waiting, averaged over all requests.
        repaired: images in which libjpeg filled in missing data, or that a GPU decoded wrongly; the ledger lists them.
        replaced: samples that could not be served; the ledger lists them.
        requests: requests to remote storage by this process, including those for samples that are not needed yet.
        fetched_bytes: bytes received for these requests.
        waits: class of length -> number of waits for a batch; see wait_quantile.
    """

    batches: int = 0
    images: int = 0
    wait_s: float = 0.0
    produce_s: float = 0.0
    read_s: float = 0.0
    elapsed_s: float = 0.0
    queue_depth: float = 0.0
    repaired: int = 0
    replaced: int = 0
    requests: int = 0
    fetched_bytes: int = 0
    waits: Mapping[int, int] = field(default_factory=dict, repr=False)

    def wait_quantile(self, share: float) -> float:
        """Return the quantile `share` (0 to 1) of the waits for a batch, in seconds; 0 before the first.

        It is accurate to 8 %. stats().wait_quantile(0.99) is the p99 of the wait.
        """
        wanted, seen = share * sum(self.waits.values()), 0
        for number, count in sorted(self.waits.items()):
            seen += count
            if seen >= wanted:
                return SHORTEST_WAIT_S * 10 ** ((number - 0.5) / CLASSES_PER_DECADE) if number else 0.0
        return 0.0

    def with_batch(
        self,
        images: int,
        *,
        wait_s: float,
        elapsed_s: float,
        ready: int,
        produce_s: float = 0.0,
        read_s: float = 0.0,
        repaired: int = 0,
        replaced: int = 0,
    ) -> LoaderStats:
        """Return these statistics with one more batch; `ready` batches were waiting before it."""
        place = wait_class(wait_s)
        return LoaderStats(
            batches=self.batches + 1,
            images=self.images + images,
            wait_s=self.wait_s + wait_s,
            produce_s=self.produce_s + produce_s,
            read_s=self.read_s + read_s,
            elapsed_s=elapsed_s,
            queue_depth=(self.queue_depth * self.batches + ready) / (self.batches + 1),
            repaired=self.repaired + repaired,
            replaced=self.replaced + replaced,
            waits={**self.waits, place: self.waits.get(place, 0) + 1},
        )

    @property
    def images_per_s(self) -> float:
        """Return delivered images over elapsed seconds; 0 before the first batch."""
        return self.images / self.elapsed_s if self.elapsed_s else 0.0


class HasStats(Protocol):
    """A Loader or the drop-in DataLoader."""

    def stats(self) -> LoaderStats:
        """Return the statistics so far."""
        ...


def loader_metrics(loader: HasStats, prefix: str = "penstock/") -> dict[str, float]:
    """Return the metrics of this rank's loader, for the `log` function of TensorBoard or W&B.

    Counts are totals since the loader was made. All times are in seconds. `wait_s` is the consumer's total wait;
    `wait_p50_s`, `wait_p95_s` and `wait_p99_s` are quantiles of the wait for a batch. `produce_s` is worker time, and
    `read_s` the part of it spent reading; `requests` and `fetched_bytes` count remote storage. `images_per_s` is the
    mean rate since the first batch was requested.
    """
    stats = loader.stats()
    values = {name: getattr(stats, name) for name in (*_COUNTED, *_MEASURED)}
    values |= {f"wait_{name}_s": stats.wait_quantile(share) for name, share in WAIT_QUANTILES.items()}
    return {f"{prefix}{name}": float(value) for name, value in values.items()}


def serve_prometheus(loader: HasStats, port: int, *, rank: int = 0, address: str = "127.0.0.1") -> Callable[[], None]:
    """Serve the loader's metrics at http://address:port/metrics, labelled with `rank`; return a function that stops.

    A thread of the server computes them on request, so a training step does not slow down. Each rank on a machine needs
    its own port; port 0 is refused. Raises LoaderError E-DEPENDENCY without prometheus_client, OSError if the port is
    in use, ValueError.
    """
    port, rank = checked_int("port", port, 1, 65535), checked_int("rank", rank, 0)
    try:
        import prometheus_client
        from prometheus_client import core
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise LoaderError(
            "E-DEPENDENCY", f"prometheus_client cannot be imported ({error})", fix="pip install prometheus_client"
        ) from error

    class LoaderCollector(Collector):
        """A collector of a loader's metrics."""

        def collect(self) -> Iterator[Any]:
            return _make_families(core, loader_metrics(loader, prefix=""), str(rank))

    registry = prometheus_client.CollectorRegistry()
    registry.register(LoaderCollector())
    server, thread = prometheus_client.start_http_server(port, addr=address, registry=registry)

    def stop() -> None:
        server.shutdown()  # takes at most half a second: each request is answered in its own thread
        server.server_close()
        thread.join()

    return stop


def _make_families(core: Any, values: dict[str, float], rank: str) -> Iterator[Any]:
    waits = core.GaugeMetricFamily("penstock_wait_quantile_seconds", "Wait for a batch", labels=["rank", "quantile"])
    for name, share in WAIT_QUANTILES.items():
        waits.add_metric([rank, str(share)], values.pop(f"wait_{name}_s"))
    yield waits
    for name, value in values.items():
        unit = name.replace("_per_s", "_per_second")
        unit = f"{unit[:-2]}_seconds" if unit.endswith("_s") else unit
        kind = core.CounterMetricFamily if name in _COUNTERS else core.GaugeMetricFamily
        family = kind(f"penstock_{unit}", name, labels=["rank"])
        family.add_metric([rank], value)
        yield family
