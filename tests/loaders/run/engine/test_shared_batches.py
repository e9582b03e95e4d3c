"""Threads that share a batch: the rows of one thread, no slot reused while a thread writes to it, few batches ahead."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_source import FaultySource
from make_planner import make_planner
from photo_folder import write_folder

from penstock.loaders import create_loader
from penstock.loaders.make.sizes.size_schedule import PatchBudget
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine import slots
from penstock.loaders.run.engine.batch_queue import BatchQueue
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.slots import share_batches, slot_bytes
from penstock.loaders.run.engine.thread_engine import ThreadEngine
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.pipelines import imagenet_train
from penstock.pipelines.spec import ImagePipeline

BATCH = {"batch_size": 8}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_LEAST_ROWS", 2)


def add_noise(image: Any, generator: np.random.Generator) -> Any:
    return np.float32(np.moveaxis(image[4:], 2, 0)) + generator.integers(0, 100)


VIEWS = [imagenet_train(32), imagenet_train((24, 40), rotate90=0), ImagePipeline(crop="letterbox", size=(20, 20))]
KINDS: dict[str, dict[str, Any]] = {
    "images": {},
    "patches": {"patches": PatchBudget(size=8, sequence_lengths=20)},
    "views": {"pipeline": VIEWS[:2]},
    "views that numpy draws": {"pipeline": VIEWS},
    "transforms": {"pipeline": VIEWS[:2], "transform": [add_noise, None]},
    "drawn by position": {"weights": np.arange(43) % 3 + 0.5, "epoch_samples": 43},
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_errors_and_repairs_equal_those_of_one_thread(tmp_path: Path, kind: str) -> None:
    """With bad samples in several parts of a batch, and a short last batch."""
    folder = write_folder(tmp_path, 43)
    for path in sorted(folder.rglob("*.jpg"))[::5]:
        path.write_bytes(path.read_bytes()[:300])
    streams = []
    for workers in (0, 1, 3, 4):
        options: dict[str, Any] = {"pipeline": imagenet_train(32), "batch_size": 8, "on_bad_sample": "replace"}
        options |= KINDS[kind]
        with create_loader(folder, workers=workers, workers_are="threads", drop_last=False, **options) as loader:
            seen = []
            for batch in loader.batches():
                images = batch.images if isinstance(batch.images, (tuple, list)) else (batch.images,)
                rows = [batch.index, batch.labels, batch.flips, batch.windows, *images]
                seen.append([each.tolist() for each in rows])
            ledger = [(entry.sample, entry.substitute, entry.code) for entry in loader.ledger().bad]
        streams.append((seen, ledger))
    assert len(streams[0][1]) >= 9
    assert all(stream == streams[0] for stream in streams)


def test_all_threads_start_with_the_first_batch() -> None:
    """They share its work: here a thread continues only after each thread has started a row."""
    together, schedule = threading.Barrier(4, timeout=60), make_planner(FaultySource(48, {}), BATCH).schedule
    firsts = schedule.batch(0, 0)[::2].tolist()
    source = FaultySource(48, dict.fromkeys(firsts, lambda: together.wait() and None))
    engine = ThreadEngine("hdf5", make_planner(source, BATCH), WorkerOptions(workers=4))
    try:
        engine.seek(Cursor(0, 0))
        batch = engine.next()
    finally:
        engine.close()
    assert not together.broken
    assert batch.index.tolist() == schedule.batch(0, 0).tolist()


def report(item: WorkItem) -> Produced:
    return Produced(item, produce_s=1.0)


@pytest.mark.parametrize("handed_out", [1, 2, 3, 4])
@pytest.mark.parametrize("made_before", [0, 1, 2, 3, 4])
def test_after_a_seek_a_slot_is_free_once_no_thread_writes_to_it(handed_out: int, made_before: int) -> None:
    queue = BatchQueue(make_planner(FaultySource(48, {}), BATCH), 4, 3, Cursor(0, 0), parts=4)
    free = len(queue.recycler)
    work = [queue.next_work() for _ in range(handed_out)]
    before, after = work[:made_before], work[made_before:]
    for number, item in before[::-1]:
        queue.put(number, report(item))
    queue.seek(Cursor(2, 8))
    for number, item in after:
        assert len(queue.recycler) == free - 1
        queue.put(number, report(item))
    assert len(queue.recycler) == free
    assert not queue.made
    number, item = queue.next_work()
    assert (number, item.cursor, item.part, item.generation) == (0, Cursor(2, 8), 0, work[0][1].generation + 1)


def test_a_batch_is_finished_with_its_last_part() -> None:
    queue = BatchQueue(make_planner(FaultySource(48, {}), BATCH), 4, 3, Cursor(0, 0), parts=4)
    work = [queue.next_work() for _ in range(8)]
    assert [(number, item.part) for number, item in work] == [(n, part) for n in (0, 1) for part in range(4)]
    for number, item in [*work[4:], *work[:4][::-1]]:
        assert queue.take() is None  # even when the second batch is finished: the order is kept
        queue.put(number, report(item))
    assert queue.ready() == 2
    made = queue.take()
    assert made is not None
    assert (made.item.cursor, made.produce_s) == (Cursor(0, 0), 4.0)


def test_many_threads_keep_few_batches_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the parts of real batches
    assert share_batches(0, 3, 256) == (1, 1)
    assert share_batches(2, 3, 64) == (2, 3)
    assert share_batches(16, 3, 8) == (1, 18)  # nothing to share
    parts, ahead = share_batches(64, 3, 1024)
    assert (parts, ahead) == (64, 3)  # not 192 batches of 154 MB
    settings = make_planner(FaultySource(2048, {}), {"batch_size": 1024}, pipeline=imagenet_train(224))
    assert slot_bytes(ahead, settings.largest_layout) < 1e9
