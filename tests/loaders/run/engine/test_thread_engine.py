"""Threads that fill slots: the order of the stream, silence, errors, and what remains afterwards."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faulty_source
import numpy as np
import pytest
import torch
from cache_files import pixel_item, write_cache
from faulty_source import FaultySource, OpenFifo
from forked_commands import Commands
from make_planner import make_planner
from processes import eventually, in_time, threads

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.process_engine import ProcessEngine, ProcessOptions
from penstock.loaders.run.engine.slots import BatchSlots
from penstock.loaders.run.engine.thread_engine import ThreadEngine

COUNT = 48


def engine_of(at: dict[int, Any], delay_s: float = 0.0, **options: Any) -> ThreadEngine:
    source = FaultySource(COUNT, at, delay_s=delay_s)
    return ThreadEngine("hdf5", make_planner(source), WorkerOptions(**{"workers": 2, "prefetch": 2, **options}))


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    made = engine_of({})
    yield made
    made.close()


def take(engine: ThreadEngine, count: int) -> list[HostBatch]:
    return [engine.next() for _ in range(count)]


def indices(batches: list[HostBatch]) -> list[list[int]]:
    return [batch.index.tolist() for batch in batches]


def test_batches_are_in_order_across_epochs_for_any_number_of_threads() -> None:
    streams = []
    for workers in (0, 1, 2, 5):
        engine = engine_of({}, workers=workers)
        engine.seek(Cursor(0, 8))
        batches = take(engine, 25)
        assert [batch.cursor for batch in batches[8:12]] == [Cursor(0, 40), Cursor(0, 44), Cursor(1, 0), Cursor(1, 4)]
        streams.append((indices(batches), [batch.images.tolist() for batch in batches[:3]]))
        engine.close()
    assert all(stream == streams[0] for stream in streams)


def test_a_seek_drops_batches_made_ahead(engine: ThreadEngine) -> None:
    engine.seek(Cursor(0, 0))
    first = indices(take(engine, 3))
    for _ in range(20):
        engine.seek(Cursor(0, 0))
        assert indices(take(engine, 3)) == first
        engine.seek(Cursor(3, 20))
        assert engine.next().cursor == Cursor(3, 20)


@pytest.mark.timeout(60)
def test_a_read_that_never_returns_is_named_and_every_thread_prints_its_stack(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fifo = tmp_path / "dead storage"
    os.mkfifo(fifo)
    engine = engine_of({17: OpenFifo(str(fifo))}, watchdog_s=1.0)
    engine.seek(Cursor(0, 0))
    started = time.monotonic()
    with pytest.raises(LoaderError, match=r"E-TIMEOUT.*sample=17 path='memory/17.jpg' backend=hdf5"):
        take(engine, 12)
    assert in_time(started, 20)
    assert "faulty_source.py" in capfd.readouterr().err
    with open(fifo, "wb"):  # let the thread continue
        pass
    assert eventually(lambda: not threads())


def test_a_busy_consumer_is_not_reported_as_silence() -> None:
    engine = engine_of({}, watchdog_s=1.0)
    engine.seek(Cursor(0, 0))
    engine.next()
    time.sleep(1.5)
    assert len(take(engine, 8)) == 8
    engine.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_loses_no_batch(workers: int) -> None:
    engine = engine_of({}, 0.005, workers=workers)
    engine.seek(Cursor(0, 0))
    expected = indices(take(engine, 12))
    engine.seek(Cursor(0, 0))
    target: Any = engine.queue.changed if workers else engine._maker
    name, calls, interrupted, served = "wait" if workers else "make", 0, 0, []
    undisturbed = getattr(target, name)

    def at_times(*arguments: Any) -> Any:
        nonlocal calls
        calls += threading.current_thread() is threading.main_thread()
        if calls % 3 == 2 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return undisturbed(*arguments)

    setattr(target, name, at_times)
    while len(served) < 12:
        try:
            served += indices(take(engine, 1))
        except KeyboardInterrupt:
            interrupted += 1
    assert served == expected
    assert interrupted >= 2
    engine.close()


def test_a_source_that_ends_its_thread_is_reported() -> None:
    engine = engine_of({5: faulty_source.leave_by_system_exit})
    engine.seek(Cursor(0, 0))
    with pytest.raises(LoaderError, match=r"E-WORKER.*sample=5.*SystemExit"):
        take(engine, 12)


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(write_cache(tmp_path / "x.h5", [pixel_item(np.full((90, 90, 3), k, np.uint8)) for k in range(24)]))


def test_threads_use_one_torch_thread_and_the_consumer_keeps_its_setting(cache: str) -> None:
    """Also, dropping a loader ends its threads."""
    before, counts = torch.get_num_threads(), []
    of_workers: set[int] = set()
    torch.set_num_threads(3)
    try:
        note: Any = lambda image: (of_workers.add(torch.get_num_threads()), image)[1]  # noqa: E731
        options: Any = {"workers": 2, "workers_are": "threads", "transform": note}
        loader = create_loader(cache, backend="hdf5", batch_size=4, **options)
        of_workers.clear()  # a transform is tried once in the consumer
        next(iter(loader))
        thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        counts.append(torch.get_num_threads())
    finally:
        torch.set_num_threads(before)
    assert (of_workers, counts) == ({1}, [3, 3])
    assert len(threads()) == 2
    del loader
    gc.collect()
    assert eventually(lambda: not threads())


def test_a_program_may_end_in_mid_epoch(cache: str, tmp_path: Path, commands: Commands) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, warnings\n"
        "from penstock.loaders import create_loader\n"
        "warnings.simplefilter('error')\n"
        "loader = create_loader(sys.argv[1], backend='hdf5', workers=4, workers_are='threads', batch_size=8)\n"
        "for _ in loader: break\n"
    )
    for running in [commands.start(cache, script=program) for _ in range(2)]:
        assert (running.wait(), running.errors) == (0, "")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seek_recovers_a_batch_lost_to_ctrl_c(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of({}, workers=workers)
    engine.seek(Cursor(0, 0))
    expected = indices(take(engine, 6))
    engine.seek(Cursor(0, 0))
    served = indices(take(engine, 2))
    place = engine._next
    with monkeypatch.context() as patch:
        patch.setattr(BatchSlots, "hand_out", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.next()
    engine.seek(place)
    assert served + indices(take(engine, 4)) == expected
    engine.close()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_lack_of_memory_for_a_batch_loses_no_slot(engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    engine.seek(Cursor(0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(BatchSlots, "hand_out", fail)
        for _ in range(20):
            with pytest.raises(MemoryError):
                engine.next()
    assert engine.next().cursor == Cursor(1, 32)


def test_a_failed_start_of_a_thread_is_reported_and_ends_the_others(
    engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, count, before = threading.Thread.start, [], torch.get_num_threads()

    def second_fails(thread: threading.Thread) -> None:
        count.append(thread)
        if len(count) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", second_fails)
        with pytest.raises(LoaderError, match=r"E-MEM.*can't start new thread"):
            engine.seek(Cursor(0, 0))
    assert eventually(lambda: not threads())
    assert torch.get_num_threads() == before
    with pytest.raises(LoaderError, match="closed"):
        engine.seek(Cursor(0, 0))


@pytest.mark.timeout(60)
def test_close_from_another_thread_ends_the_wait() -> None:
    engine = engine_of({}, 0.3, workers=1, prefetch=1)
    engine.seek(Cursor(0, 0))
    threading.Timer(0.2, engine.close).start()
    with pytest.raises(LoaderError, match=r"E-MISUSE.*closed while"):
        take(engine, 3)


def test_nothing_is_ready_before_an_engine_starts_and_after_close() -> None:
    settings = make_planner(FaultySource(COUNT, {}))
    for engine in (
        ThreadEngine("torch", settings, WorkerOptions()),
        ProcessEngine("torch", settings, ProcessOptions()),
    ):
        assert engine.ready() == 0
        engine.close()
        assert engine.ready() == 0


def test_three_batches_are_made_ahead_by_default() -> None:
    assert WorkerOptions().prefetch == ProcessOptions().prefetch == 3


def test_a_batch_made_before_the_preceding_one_is_not_ready() -> None:
    """A consumer that sends ready batches ahead would wait for the one before it."""
    began, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        go_on.wait(60)

    first = make_planner(FaultySource(COUNT, {})).schedule.batch(0, 0)[0]
    engine = engine_of({int(first): hang})
    try:
        engine.seek(Cursor(0, 0))
        assert began.wait(60)
        queue = engine.queue
        assert queue is not None
        assert eventually(lambda: len(queue.made) > 0)
        assert engine.ready() == 0
        go_on.set()
        assert eventually(lambda: engine.ready() == 3)  # the maximum number in flight
    finally:
        go_on.set()
        engine.close()
