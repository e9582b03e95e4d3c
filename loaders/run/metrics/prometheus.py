"""Serves the metrics of a loader to Prometheus (the extra `prometheus`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.loaders.run.metrics.stats import WAIT_QUANTILES, HasStats, loader_metrics
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_int

_COUNTERS = ("batches", "images", "replaced", "repaired", "wait_s", "produce_s", "read_s", "requests", "fetched_bytes")


def serve_prometheus(loader: HasStats, port: int, *, rank: int = 0, address: str = "127.0.0.1") -> Callable[[], None]:
    """Serve the loader's metrics at http://address:port/metrics, labelled with `rank`; return a function that stops.

    A thread of the server computes them on request, so a training step pays nothing. Each rank of a machine needs its
    own port; port 0 is refused. Raises LoaderError E-DEPENDENCY without prometheus_client, OSError if the port is in
    use, ValueError.
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
        """Make metric families of a loader's statistics."""

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
