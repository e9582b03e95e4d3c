"""Workers that die, stop, block or raise: reported within seconds, no hang, nothing left behind."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faulty_source
import pytest
import torch
from faulty_source import FaultySource
from numbered_dataset import Numbered
from processes import child_pids, eventually, in_time, worker_pids

from penstock.loaders import DataLoader, LoaderError, create_loader
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train

NUM_PHOTOS = 48


def open_loader(source: Any, **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(32), "batch_size": 4, "dtype": torch.uint8, "seed": 7}
    return create_loader(source, **{**defaults, "workers": 2, "workers_are": "processes", **settings})


def forever(loader: Loader) -> Iterator[Any]:
    return itertools.chain.from_iterable(loader.batches() for _ in itertools.count())


def served_until_error(stream: Iterator[Any], within_s: float = 30.0) -> tuple[list[list[int]], LoaderError]:
    """Return the indices of the batches before the error, and the error."""
    served, deadline = [], time.monotonic() + within_s
    try:
        for batch in stream:
            served.append(batch.index.tolist())
            assert time.monotonic() < deadline, "no error"
    except LoaderError as error:
        return served, error
    return pytest.fail("no error")


@contextmanager
def nothing_left(loader: Loader) -> Iterator[None]:
    """Close the loader at the end, quickly and without leftover processes and descriptors."""
    yield
    started = time.monotonic()
    loader.close()
    assert in_time(started)
    assert eventually(lambda: not child_pids())


# ---- killed from outside ----


def test_a_new_loader_resumes_after_a_lost_worker(photos: Path) -> None:
    with open_loader(photos) as undisturbed:
        expected = [batch.index.tolist() for batch in undisturbed.batches()]
    loader = open_loader(photos)
    with nothing_left(loader):
        stream = loader.batches()
        served = [next(stream).index.tolist() for _ in range(4)]
        os.kill(max(worker_pids()), signal.SIGKILL)
        more, error = served_until_error(stream)
        assert error.code == "E-WORKER"
        served += more
        state = loader.state_dict()
        with pytest.raises(LoaderError, match="closed"):
            next(loader.batches())
    with open_loader(photos) as heir:
        heir.load_state_dict(state)
        served += [batch.index.tolist() for batch in heir.batches()]
    assert served == expected


def test_a_lock_that_died_with_a_worker_does_not_block_close(photos: Path) -> None:
    loader = open_loader(photos)
    next(forever(loader))
    done: Any = loader._engine._iterator._workers_done_event  # type: ignore[attr-defined]
    done._cond.acquire()  # as a worker does for a microsecond before each batch
    with nothing_left(loader):
        pass


def test_close_waits_for_the_threads_that_hold_semaphores(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a program that ended meanwhile printed multiprocessing's warning of leaked semaphores at its end."""
    feed, ended = Queue._feed, []  # type: ignore[attr-defined]

    def leave_slowly(*args: Any) -> None:
        feed(*args)
        time.sleep(0.3)
        ended.append(threading.current_thread())

    monkeypatch.setattr(Queue, "_feed", staticmethod(leave_slowly))
    with open_loader(photos) as loader:
        next(forever(loader))
    assert len(ended) == 2


# ---- signals that a batch system sends to all processes of a job ----


def test_other_processes_are_terminated_as_usual(photos: Path) -> None:
    """Programs that a data set starts in a worker, and the user's processes from the same server."""
    with open_loader(FaultySource(NUM_PHOTOS, {17: faulty_source.terminate_a_program})) as loader:
        assert len(list(loader)) == len(loader)
        process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(1000,))
        process.start()
        process.terminate()
        process.join(600)
        assert process.exitcode == -signal.SIGTERM


# ---- stopped, blocked ----


@pytest.mark.parametrize("drop_in", [False, True], ids=["Loader", "DataLoader"])
def test_a_program_stopped_as_a_whole_is_not_silent(photos: Path, drop_in: bool) -> None:
    """After Ctrl-Z and `fg` time has passed without progress, because all processes were stopped."""
    with (
        DataLoader(Numbered(8), 2, num_workers=1, watchdog_s=5, persistent_workers=True)
        if drop_in
        else open_loader(photos, watchdog_s=5) as it
    ):
        next(iter(it))
        time.sleep(0.3)  # the workers are idle, so their progress does not change
        iterator: Any = it._iterator if isinstance(it, DataLoader) else it._engine._iterator  # type: ignore[attr-defined]
        watchdog = (iterator if drop_in else it._engine)._watchdog  # type: ignore[union-attr]
        pid = iterator._workers[0].pid
        assert iterator.on_silence(0, pid) is None
        watchdog._looked_s -= 3600
        assert iterator.on_silence(0, pid) is None
        for _ in range(20):  # but successive checks add up
            watchdog._looked_s -= 0.5
            error = iterator.on_silence(0, pid)
            if error is not None:
                break
        assert error is not None
        assert error.code == "E-TIMEOUT"


# ---- the source's own faults ----


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fault_that_is_not_of_the_sample_is_reported_with_its_traceback(workers: int) -> None:
    fault = faulty_source.run_out_of_memory
    source = FaultySource(NUM_PHOTOS, {17: fault})
    with open_loader(FaultySource(NUM_PHOTOS, {}), workers=0) as loader:
        good = [batch.index.tolist() for batch in loader.batches()]
    loader = open_loader(
        source, workers=workers, on_bad_sample="replace"
    )  # not a bad sample but an error of the program
    with nothing_left(loader):
        served, error = served_until_error(loader.batches())
        assert (error.code, error.sample, error.path) == ("E-MEM", 17, b"memory/17.jpg")
        assert "no room for 7 bytes" in error.cause
        assert served == good[: len(served)]
        assert 17 in good[len(served)]
        assert error.__cause__ is not None
        if workers:
            assert f"in {fault.__name__}" in str(error.__cause__)
        else:
            assert error.__cause__.__traceback__ is not None
        with pytest.raises(LoaderError, match="closed"):  # it does not continue with the next batch
            next(loader.batches())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_leaves_opencv_no_threads(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "threads"
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(setNumThreads=lambda number: told.write_text(str(number))))
    with open_loader(photos, start_method="fork", workers=1) as loader:
        next(forever(loader))
    assert told.read_text() == "0"


def test_a_fault_in_labels_is_not_blamed_on_a_sample() -> None:
    source = FaultySource(NUM_PHOTOS, {})
    source.labels = lambda indices: [1 // 0 for _ in indices]  # type: ignore[method-assign, return-value]
    with pytest.raises(LoaderError) as caught:
        open_loader(source, workers=0)
    assert (caught.value.code, caught.value.sample) == ("E-DATASET", None)
    assert "labels() raised ZeroDivisionError" in caught.value.cause


def test_a_source_that_cannot_name_its_samples_still_gets_its_error() -> None:
    source = FaultySource(NUM_PHOTOS, {17: faulty_source.divide_by_zero})
    source.path = lambda index: bytes(1 // 0)  # type: ignore[method-assign]
    with open_loader(source, workers=0) as loader, pytest.raises(LoaderError) as caught:
        list(loader)
    assert (caught.value.code, caught.value.sample, caught.value.path) == ("E-READ", 17, None)


# ---- Ctrl-C in the program that uses a loader ----


@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupted_loader_can_be_iterated_again(photos: Path, before: int) -> None:
    """As in a notebook: the cell is interrupted and run again."""
    with open_loader(photos) as undisturbed:
        expected = [[batch.index.tolist() for batch in undisturbed.batches()] for _ in range(2)]
    loader = open_loader(photos)
    with nothing_left(loader):
        stream = loader.batches()
        served = [next(stream).index.tolist() for _ in range(before)]
        state = loader.state_dict()
        interrupt_next(loader, stream)
        assert loader.state_dict() == state
        # a started epoch is abandoned, as after any iteration that is left
        assert [batch.index.tolist() for batch in loader.batches()] == expected[1 if before else 0]
        loader.load_state_dict(state)
        served += [batch.index.tolist() for batch in loader.batches()]
        assert served == expected[0]


def interrupt_next(loader: Loader, stream: Iterator[Any]) -> None:
    """Ctrl-C while the next batch is received, which loses this batch."""
    engine: Any = loader._engine
    engine.seek(loader._cursor)
    take = engine._iterator._next_data

    def interrupted() -> Any:
        take()
        raise KeyboardInterrupt

    engine._iterator._next_data = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(stream)


def test_signals_are_deferred_until_workers_have_started() -> None:
    from penstock.loaders.run.workers.launch import deferred_signals

    happened: list[str] = []

    def handle(number: int, frame: object) -> None:
        happened.append(signal.Signals(number).name)
        raise InterruptedError

    def start(*numbers: signal.Signals) -> list[str]:
        happened.clear()
        with pytest.raises(InterruptedError), deferred_signals():
            happened.extend(signal.raise_signal(number) or "going on" for number in numbers)
        return happened

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert start(signal.SIGTERM) == ["going on", "SIGTERM"]
        assert start(signal.SIGINT) == ["going on", "SIGINT"]
        assert start(signal.SIGTERM, signal.SIGTERM) == ["going on", "SIGTERM"]  # the second signal is not deferred
        assert start(signal.SIGTERM, signal.SIGTERM, signal.SIGTERM) == ["going on", "SIGTERM"]
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
