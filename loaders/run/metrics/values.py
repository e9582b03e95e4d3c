"""The metrics of a loader as a dict of numbers: `run.log(loader_metrics(loader))`."""

from __future__ import annotations

from typing import Protocol

from penstock.loaders.run.metrics.stats import LoaderStats

_COUNTED = ("batches", "images", "replaced", "repaired", "images_per_s", "queue_depth")
_MEASURED = ("elapsed_s", "wait_s", "produce_s", "read_s", "requests", "fetched_bytes")
WAIT_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class HasStats(Protocol):
    """A Loader or the drop-in DataLoader, whose metrics can be read."""

    def stats(self) -> LoaderStats:
        """Return the statistics so far."""
        ...


def loader_metrics(loader: HasStats, prefix: str = "penstock/") -> dict[str, float]:
    """Return the metrics of this rank's loader, as TensorBoard's and W&B's `log` take them.

    Counts are totals since the loader was made. All times are in seconds. `wait_s` is the consumer's total wait;
    `wait_p50_s`, `wait_p95_s` and `wait_p99_s` are quantiles of the wait for a batch. `produce_s` is worker time, and
    `read_s` the part of it spent reading; `requests` and `fetched_bytes` went to remote storage. `images_per_s` is the
    mean rate since the first batch was requested.
    """
    stats = loader.stats()
    values = {name: getattr(stats, name) for name in (*_COUNTED, *_MEASURED)}
    values |= {f"wait_{name}_s": stats.wait_quantile(share) for name, share in WAIT_QUANTILES.items()}
    return {f"{prefix}{name}": float(value) for name, value in values.items()}
