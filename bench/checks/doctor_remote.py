"""Measures remote storage: what a request takes, and how many bytes per second come with many requests at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

from penstock.bench.checks.finding import Finding
from penstock.bench.measure.clock import Stopwatch
from penstock.loaders.remote.remote_source import RemoteSource
from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.view import View

_LOOKS = 5
_MOST_SAMPLES = 256
_SLOW_REQUEST_S = 0.2


def find_remote(source: Source) -> RemoteSource | None:
    """Return the remote source that `source` is or shows a part of; None for data on this machine."""
    while isinstance(source, View):
        source = source.source
    return source if isinstance(source, RemoteSource) else None


def remote_speed(name: str, source: RemoteSource) -> Finding:
    """Measure the latency of a request, and the bandwidth with as many requests as a loader makes."""
    url = source.path(0).decode(errors="replace").rpartition(":")[0]
    latencies: list[float] = []
    for _ in range(_LOOKS):
        watch = Stopwatch()
        source.store.stat(url)
        latencies.append(watch.seconds)
    some = np.unique(np.linspace(0, len(source) - 1, min(len(source), _MOST_SAMPLES)).astype(np.int64)).tolist()
    watch = Stopwatch()
    with ThreadPoolExecutor(source.options.requests) as pool:
        num_bytes = sum(map(len, pool.map(source.read, some)))
    rate, latency = num_bytes / watch.seconds, median(latencies)
    text = (
        f"{1e3 * latency:,.0f} ms per request; {len(some) / watch.seconds:,.0f} images/s and {rate / 1e6:,.1f} MB/s "
        f"with {source.options.requests} requests at a time"
    )
    if latency > _SLOW_REQUEST_S:
        fix = "raise requests= and bytes_ahead=, or keep a copy: local_cache=FOLDER"
        return Finding(f"{name}: network", "warn", text, fix)
    return Finding(f"{name}: network", "ok", text)
