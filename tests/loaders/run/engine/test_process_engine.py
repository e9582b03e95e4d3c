"""How an engine of worker processes counts the batches that can be taken without waiting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_source import FaultySource, OpenFifo, run_out_of_memory
from make_planner import make_planner
from processes import eventually

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.process_engine import ProcessEngine, ProcessOptions
from penstock.loaders.run.workers.worker_progress import MADE

COUNT, BATCH, PREFETCH = 64, 4, 2
ORDER = make_planner(FaultySource(COUNT, {})).schedule


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A file that blocks its reader until it is opened for writing, which the fixture does at the end."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def engine_of(at: dict[int, object]) -> ProcessEngine:
    settings = make_planner(FaultySource(COUNT, at))  # type: ignore[arg-type]
    return ProcessEngine("torch", settings, ProcessOptions(workers=2, workers_are="processes", prefetch=PREFETCH))


def made(engine: ProcessEngine) -> list[int]:
    found: list[int] = engine._progress.table[:-1, MADE].tolist()
    return found


def test_a_batch_made_before_the_preceding_one_is_not_ready(fifo: Path) -> None:
    """A consumer that sends ready batches ahead would wait for the one before it."""
    engine = engine_of({int(ORDER.batch(0, 0)[0]): OpenFifo(str(fifo))})
    try:
        engine.seek(Cursor(0, 0))
        assert eventually(lambda: made(engine) == [0, PREFETCH])
        assert engine.ready() == 0
        os.close(os.open(fifo, os.O_WRONLY))
        assert eventually(lambda: engine.ready() == 2 * PREFETCH)
        engine.next()
        assert eventually(lambda: engine.ready() == 2 * PREFETCH)  # another one was handed out
    finally:
        engine.close()


def test_batches_made_for_another_position_are_not_ready() -> None:
    engine = engine_of({})
    try:
        engine.seek(Cursor(0, 0))
        assert eventually(lambda: engine.ready() == 2 * PREFETCH)
        engine.seek(Cursor(0, 8 * BATCH))
        assert engine.ready() == 0
        engine.next()
        assert eventually(lambda: engine.ready() == 2 * PREFETCH)
        engine.next()
        assert eventually(lambda: engine.ready() == 2 * PREFETCH)
    finally:
        engine.close()


def test_a_batch_whose_message_is_an_error_is_ready() -> None:
    """It can be taken without waiting, and its error is raised without delay."""
    engine = engine_of({int(ORDER.batch(0, BATCH)[1]): run_out_of_memory})
    try:
        engine.seek(Cursor(0, 0))
        assert eventually(lambda: made(engine) == [PREFETCH, PREFETCH])
        assert engine.ready() == 2 * PREFETCH
    finally:
        engine.close()
