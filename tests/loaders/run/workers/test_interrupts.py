"""Ctrl-C at any moment in the consumer: no batch is lost or repeated, nothing hangs, nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import pkgutil
import signal
import sys
import threading
import time
from typing import Any

import pytest
import torch
from faulty_source import FaultySource
from interrupts import Interruption
from make_planner import make_planner
from memory_source import MemorySource
from photo_folder import photo
from processes import child_pids, eventually, in_time, threads
from torch.utils.data import TensorDataset

from penstock.loaders import DataLoader
from penstock.loaders.dali.dali_engine import DaliEngine, DaliOptions
from penstock.loaders.drop_in.batch_iterator import BatchIterator
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.process_engine import ProcessEngine, ProcessOptions
from penstock.loaders.run.engine.thread_engine import ThreadEngine
from penstock.loaders.system.signal_safe import SignalSafeCondition

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="check points are found as Python 3.11 has them"),
    # Ctrl-C between open() and its `with` leaves a file to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
BATCHES = 5
TRIALS = 12  # each at another point of the code


def open_engine(kind: str) -> Any:
    settings = make_planner(FaultySource(48, {}))
    if kind == "processes":
        return ProcessEngine("torch", settings, ProcessOptions(workers=2, prefetch=1))
    return ThreadEngine("hdf5", settings, WorkerOptions(workers=2 if kind == "threads" else 0, prefetch=1))


def served(kind: str, interruption: Interruption) -> list[list[int]]:
    """Return the samples of the first batches of a consumer that continues after Ctrl-C."""
    engine = open_engine(kind)
    after = make_planner(FaultySource(48, {})).schedule.after
    place, batches = Cursor(0, 0), []
    engine.seek(place)

    def consume() -> None:
        nonlocal place
        while len(batches) < BATCHES:
            engine.seek(place)
            batch = engine.next()
            place = after(place)
            batches.append(batch.index.tolist())
        engine.close()

    try:
        interruption.run(consume)
    except KeyboardInterrupt:
        consume()
    assert eventually(lambda: not threads())
    return batches


@pytest.mark.parametrize("kind", ["processes", "threads", "alone"])
def test_a_consumer_continues_after_ctrl_c_at_any_moment(kind: str) -> None:
    whole = Interruption()
    expected = served(kind, whole)
    for at in whole.draw(TRIALS):
        interruption = Interruption(at)
        assert served(kind, interruption) == expected, interruption.struck
        assert eventually(lambda: not child_pids()), interruption.struck


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("backend", ["hdf5", "dali"])
def test_starting_threads_of_an_engine_survive_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, backend: str, number: int
) -> None:
    """At the start of thread `number`: two make batches (in dali, read), one more belongs to DALI."""
    start, started = threading.Thread.start, itertools.count(1)

    def interrupted(thread: threading.Thread) -> None:
        if next(started) == number:
            signal.raise_signal(signal.SIGINT)
        start(thread)

    settings = make_planner(MemorySource([photo(k) for k in range(12)]))
    engine: Any = (
        DaliEngine(settings, DaliOptions(workers=1, readers=2))
        if backend == "dali"
        else ThreadEngine("hdf5", settings, WorkerOptions(workers=3, prefetch=1))
    )
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.seek(Cursor(0, 0))
    engine.seek(Cursor(0, 0))
    assert engine.next().index.tolist() == settings.schedule.batch(0, 0).tolist()
    engine.close()


def test_ctrl_c_at_any_moment_ends_the_iteration_of_the_drop_in_loader() -> None:
    data = torch.arange(32)

    def iterate() -> list[list[int]]:
        batches = DataLoader(TensorDataset(data), 4, num_workers=2, multiprocessing_context="forkserver")
        return [batch.tolist() for (batch,) in batches]

    whole = Interruption()
    expected = whole.run(iterate)
    for at in whole.draw(TRIALS):
        interruption = Interruption(at)
        with contextlib.suppress(KeyboardInterrupt):
            assert interruption.run(iterate) == expected, interruption.struck
        gc.collect()
        assert eventually(lambda: not child_pids()), interruption.struck
        assert eventually(lambda: not threads()), interruption.struck


def first_batch(kind: str, method: str, interruption: Interruption) -> None:
    """Request one batch of one worker, then close."""
    batches: Any
    if kind == "drop-in":
        batches = DataLoader(TensorDataset(torch.arange(8)), 2, num_workers=1, multiprocessing_context=method)
    else:
        settings = make_planner(FaultySource(48, {}))
        batches = ProcessEngine("torch", settings, ProcessOptions(workers=1, prefetch=2, start_method=method))
    with contextlib.closing(batches):
        interruption.run(
            lambda: next(iter(batches)) if kind == "drop-in" else (batches.seek(Cursor(0, 0)), batches.next())
        )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "method"), [("drop-in", "fork"), ("processes", "forkserver")])
def test_ctrl_c_while_the_first_work_is_sent_to_workers(kind: str, method: str) -> None:
    """It once left a queue's lock locked, so that the clean-up hung, or a queue's thread that never sent anything."""
    within = "Queue.put"  # "WatchedIterator._reset" covers everything from the workers' start on
    whole = Interruption(within=within)
    first_batch(kind, method, whole)
    for at in sorted({visits[k] for visits in whole.places.values() for k in (0, -1)}):
        interruption = Interruption(at, within)
        with contextlib.suppress(KeyboardInterrupt):
            first_batch(kind, method, interruption)
        assert not interruption.struck or in_time(interruption.struck_s), interruption.struck
    assert len(whole.places) > 10
    gc.collect()
    assert eventually(lambda: not child_pids())
    assert eventually(lambda: not threads())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["_get_data", "_try_put_index"])
def test_persistent_workers_start_again_after_ctrl_c(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The next epoch once hung, waiting for a batch that had arrived at the moment of Ctrl-C."""
    batches = DataLoader(TensorDataset(torch.arange(16)), 2, num_workers=2, persistent_workers=True)
    expected = [batch.tolist() for (batch,) in batches]
    work, calls = getattr(BatchIterator, where), itertools.count(1)

    def interrupted(iterator: BatchIterator) -> Any:
        result = work(iterator)
        if next(calls) == 5:
            raise KeyboardInterrupt
        return result

    with contextlib.closing(batches):
        with monkeypatch.context() as patch:
            patch.setattr(BatchIterator, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(batches)
        batches.set_epoch(0)
        assert [batch.tolist() for (batch,) in batches] == expected


@pytest.mark.parametrize(
    ("method", "where", "workers"),
    [
        ("fork", "os.fork", 2),
        ("spawn", "multiprocessing.util.spawnv_passfds", 1),  # each imports torch
        ("forkserver", "multiprocessing.forkserver.connect_to_new_process", 2),
    ],
)
def test_starting_workers_of_the_drop_in_loader_survive_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], method: str, where: str, workers: int
) -> None:
    """Otherwise the process would be orphaned, or end with a traceback."""
    batches = DataLoader(TensorDataset(torch.arange(8)), 4, num_workers=workers, multiprocessing_context=method)
    assert len(list(DataLoader(batches.dataset, 4, num_workers=1, multiprocessing_context="forkserver"))) == 2
    # Anything that all workers share runs now.
    create = pkgutil.resolve_name(where)
    started = itertools.count(1)

    def interrupted(*arguments: Any) -> Any:
        made = create(*arguments)
        if made and next(started) == workers:  # in the parent
            signal.raise_signal(signal.SIGINT)
        return made

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            iter(batches)
    gc.collect()
    assert eventually(lambda: not child_pids())
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    assert method == "spawn" or len(list(batches)) == 2
    assert capfd.readouterr().err == ""


def lock_is_left(condition: threading.Condition, interruption: Interruption) -> bool:
    """Return whether the lock stays locked after Ctrl-C in a consumer's use of a condition."""

    def use() -> None:
        with condition:
            condition.notify_all()
            condition.wait(0.001)

    try:
        interruption.run(use)
    except KeyboardInterrupt:
        pass
    except RuntimeError:  # it was released twice
        return True
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(condition.acquire(timeout=0.1)))
    other.start()
    other.join()
    return not taken[0]


@pytest.mark.parametrize(("kind", "left"), [(SignalSafeCondition, False), (threading.Condition, True)])
def test_ctrl_c_leaves_no_condition_locked(kind: type[threading.Condition], left: bool) -> None:
    """Python's own condition shows that the check points are the right ones."""
    whole = Interruption()
    lock_is_left(kind(), whole)
    assert whole.points > 5
    found = [lock_is_left(kind(), Interruption(at)) for at in range(1, whole.points + 1)]
    assert any(found) == left


def test_ctrl_c_while_a_thread_is_notified_loses_no_notification() -> None:
    """Otherwise the feeder thread of a multiprocessing queue would miss the next message."""

    def taken_after(interruption: Interruption) -> bool:
        changed, boxes, taken = SignalSafeCondition(threading.Lock()), [], []

        def take() -> None:
            while "end" not in taken:
                with changed:
                    while not boxes:
                        changed.wait()
                    taken.append(boxes.pop())

        def put(box: str) -> None:
            with changed:
                boxes.append(box)
                changed.notify()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        assert eventually(lambda: len(changed._waiters) == 1)  # type: ignore[attr-defined]
        with contextlib.suppress(KeyboardInterrupt):
            interruption.run(lambda: put("first"))
        time.sleep(0.01)  # until the thread waits again
        put("end")
        thread.join(5 if interruption.struck else None)
        return not thread.is_alive()

    whole = Interruption()
    assert taken_after(whole)
    for at in range(1, whole.points + 1):
        interruption = Interruption(at)
        assert taken_after(interruption), interruption.struck
