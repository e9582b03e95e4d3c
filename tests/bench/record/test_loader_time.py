"""The workers' use of time distinguishes slow sources from fast ones."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from faulty_source import FaultySource
from photo_folder import write_folder
from processes import eventually

from penstock.bench.record.loader_time import Span, WorkerTime
from penstock.loaders import create_loader
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.run.metrics.stats import LoaderStats
from penstock.pipelines import imagenet_train


def seen(source: Source, *, workers: int = 0) -> WorkerTime:
    """The times of an epoch without its first batch."""
    with create_loader(source, batch_size=4, pipeline=imagenet_train(32), workers=workers) as loader:
        with closing(iter(loader)) as batches:  # type: ignore[type-var]
            next(batches)
            begin = loader.stats()
            assert len(list(islice(batches, 9))) == 5
        found = WorkerTime.of([Span(begin, loader.stats())], workers)
    assert found is not None
    return found


@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_of_a_sleeping_source_is_read_time(workers: int) -> None:
    slow = seen(FaultySource(24, {}, delay_s=0.02), workers=workers)
    assert slow.read_share > 0.5
    assert slow.read_s >= 0.02
    assert slow.worker_s > slow.read_s
    assert eventually(lambda: seen(FaultySource(24, {})).read_s < 0.02)


def test_parts_of_a_cache_count_as_reading(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", 8)
    with create_loader(photos, backend="hdf5", cache=tmp_path / "x.h5", batch_size=4, workers=0) as loader:
        list(loader)
        stats = loader.stats()
    assert 0 < stats.read_s < stats.produce_s


def test_shares_refer_to_the_time_between_begin_and_end() -> None:
    spans = [
        Span(
            LoaderStats(batches=2, images=20, produce_s=5.0, read_s=5.0, elapsed_s=100.0, queue_depth=3.0),
            LoaderStats(batches=6, images=60, produce_s=9.0, read_s=8.0, elapsed_s=104.0, queue_depth=2.0),
        ),
        Span(LoaderStats(), LoaderStats(batches=4, images=40, produce_s=4.0, read_s=1.0, elapsed_s=4.0)),
    ]
    found = WorkerTime.of(spans, 2)
    assert found is not None
    assert (found.busy, found.read_share, found.worker_s, found.read_s) == (0.5, 0.5, 0.1, 0.05)
    assert found.queue_depth == 6 / 8
    assert WorkerTime.of(spans[1:], 0) == WorkerTime.of(spans[1:], 1)
    assert WorkerTime.of([], 2) is None
    assert WorkerTime.of([Span(LoaderStats(), LoaderStats(batches=4, images=40, elapsed_s=4.0))], 2) is None
