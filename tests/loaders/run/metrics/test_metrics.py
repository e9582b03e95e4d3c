"""Metrics of a loader: quantiles of the wait, the dict for `log`, Prometheus."""

from __future__ import annotations

import socket
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from photo_folder import write_folder

from penstock.loaders import DataLoader, LoaderError, LoaderStats, create_loader
from penstock.loaders.run.metrics.stats import WAIT_CLASSES, loader_metrics, serve_prometheus, wait_class
from penstock.pipelines import imagenet_train


class Made:
    """A loader with these statistics."""

    def __init__(self, stats: LoaderStats) -> None:
        self._stats = stats

    def stats(self) -> LoaderStats:
        return self._stats


def stats_of(waits: list[float]) -> LoaderStats:
    stats = LoaderStats()
    for wait in waits:
        stats = stats.with_batch(2, wait_s=wait, elapsed_s=10.0, ready=1, produce_s=0.5, read_s=0.1, replaced=1)
    return stats


def test_quantiles_of_the_wait_are_within_eight_percent() -> None:
    waits = np.random.default_rng(0).lognormal(-5, 2, 1000)
    stats = stats_of(waits.tolist())
    for share in (0.01, 0.5, 0.95, 0.99, 1.0):
        assert stats.wait_quantile(share) == pytest.approx(np.quantile(waits, share, method="inverted_cdf"), rel=0.08)
    assert LoaderStats().wait_quantile(0.5) == stats_of([0.0]).wait_quantile(0.5) == 0.0
    assert (wait_class(1e-9), wait_class(1e9)) == (0, WAIT_CLASSES)
    before = stats_of([1.0])
    before.with_batch(1, wait_s=100.0, elapsed_s=1.0, ready=0)
    assert before.wait_quantile(1.0) == pytest.approx(1.0, rel=0.08)  # a snapshot does not change
    assert "waits=" not in repr(before)  # its classes mean nothing to a reader


def test_both_loaders_have_metrics_for_a_log(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", 8)
    settings = {"pipeline": imagenet_train(16), "batch_size": 4, "workers": 0, "device": "cpu"}
    with create_loader(photos, **settings) as loader:  # type: ignore[arg-type]
        assert loader_metrics(loader)["penstock/images_per_s"] == 0
        list(loader)
        found = loader_metrics(loader)
    assert (found["penstock/batches"], found["penstock/images"], found["penstock/replaced"]) == (2, 8, 0)
    assert 0 < found["penstock/wait_p50_s"] <= found["penstock/wait_p99_s"] <= 1.08 * found["penstock/wait_s"]
    assert 0 < found["penstock/read_s"] < found["penstock/produce_s"]
    assert all(type(value) is float for value in found.values())
    drop_in = DataLoader([1.0, 2.0, 3.0], batch_size=1)
    list(drop_in)
    assert loader_metrics(drop_in, prefix="")["batches"] == 3


def test_prometheus_reads_the_metrics_of_a_loader() -> None:
    pytest.importorskip("prometheus_client")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Made(stats_of([0.25]))
    stop = serve_prometheus(made, port, rank=2)
    try:
        made._stats = stats_of([0.25] * 5)  # read at the time of the request
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    finally:
        stop()
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    counters = "batches images replaced repaired wait_seconds produce_seconds read_seconds requests fetched_bytes"
    gauges = "images_per_second queue_depth elapsed_seconds wait_quantile_seconds"
    wanted = {f"penstock_{name}_total": "counter" for name in counters.split()}
    assert kinds == {
        **wanted,
        **{f"penstock_{name}": "gauge" for name in gauges.split()},
    }  # rates are computed from counters
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values['penstock_batches_total{rank="2"}']) == 5
    assert float(values['penstock_wait_seconds_total{rank="2"}']) == 1.25
    assert float(values['penstock_wait_quantile_seconds{quantile="0.99",rank="2"}']) == pytest.approx(0.25, rel=0.08)
    assert float(values['penstock_images_per_second{rank="2"}']) == 1.0
    with pytest.raises(ValueError, match="port must be from 1"):
        serve_prometheus(made, 0)


def test_a_missing_package_is_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*pip install prometheus_client"):
        serve_prometheus(Made(LoaderStats()), 9090)
