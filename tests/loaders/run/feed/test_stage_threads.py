"""Threads of the batch stage: each job once, exceptions, Ctrl-C, their end, a fork, and what they change in torch."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from forked_child import ForkedChild
from processes import eventually, threads

from penstock.loaders import create_loader
from penstock.loaders.run.feed.stage_threads import THREADS, StageThreads
from penstock.pipelines import imagenet_train

JITTER: Any = {"color_jitter": (0.4, 0.4, 0.4, 0.1), "blur": 0.5, "erasing": 0.5}
PHOTOS = (np.random.default_rng(0).integers(0, 256, (24, 40, 40, 3), np.uint8), np.arange(24) % 3)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pool() -> Iterator[StageThreads]:
    made = StageThreads()
    yield made
    made.end()
    assert threads() == []


def test_each_job_is_done_once_by_threads_that_torch_uses_alone(pool: StageThreads) -> None:
    done: Counter[int] = Counter()
    seen: set[tuple[str, int]] = set()

    def job(number: int) -> None:
        torch.ones(40_000, dtype=torch.float32, device="cpu").sum()
        seen.add((threading.current_thread().name, torch.get_num_threads()))
        time.sleep(0.001)
        done[number] += 1

    for _ in range(3):
        pool.run(pool, [partial(job, number) for number in range(40)])
    assert done == dict.fromkeys(range(40), 3)
    assert seen == {(f"penstock-stage-{number}", 1) for number in range(3)}
    of_others: list[int] = []
    other = threading.Thread(target=lambda: of_others.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert (torch.get_num_threads(), of_others) == (3, [3])


def test_one_thread_of_torch_is_the_consumer(pool: StageThreads) -> None:
    torch.set_num_threads(1)
    names: list[str] = []
    pool.run(pool, [lambda: names.append(threading.current_thread().name)] * 4)
    assert (names, threads()) == (["MainThread"] * 4, [])


def test_an_exception_of_a_job_reaches_the_consumer_and_the_other_jobs_are_left_out(pool: StageThreads) -> None:
    done: list[int] = []

    def job(number: int) -> None:
        if number == 4:
            raise IndexError("of the job")
        time.sleep(0.002)
        done.append(number)

    with pytest.raises(IndexError, match="of the job"):
        pool.run(pool, [partial(job, number) for number in range(60)])
    assert len(done) < 30
    pool.run(pool, [partial(done.append, 100)] * 5)
    assert done[-5:] == [100] * 5


def test_ctrl_c_stops_the_threads_before_it_is_raised(pool: StageThreads) -> None:
    at_work: list[int] = []

    def job(number: int) -> None:
        at_work.append(number)
        if number == 1:
            os.kill(os.getpid(), 2)
        time.sleep(0.02)
        at_work.remove(number)

    with pytest.raises(KeyboardInterrupt):
        pool.run(pool, [partial(job, number) for number in range(100)])
    assert at_work == []
    pool.run(pool, [partial(at_work.append, 0)] * 3)
    assert at_work == [0] * 3


def test_jobs_are_done_if_no_thread_can_be_started(pool: StageThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", fail)
    pool.run(pool, [partial(done.append, 1)] * 4)
    assert (done, torch.get_num_threads()) == ([1] * 4, 3)


def test_loaders_share_threads_that_end_with_the_last_of_them() -> None:
    options: Any = {"pipeline": imagenet_train(40, **JITTER), "batch_size": 12, "workers": 0}
    first, second, third = (create_loader(PHOTOS, **options) for _ in range(3))
    served = [next(batches) for batches in (iter(first), iter(second))]
    of_third = iter(third)
    next(of_third)
    assert {thread.name for thread in threads()} <= {f"penstock-stage-{number}" for number in range(3)}
    assert threads()
    first.close()
    del second, served
    gc.collect()
    next(of_third)
    assert threads()
    third.close()
    assert threads() == []


def test_dropped_loaders_end_their_threads() -> None:
    loader = create_loader(PHOTOS, pipeline=imagenet_train(40, **JITTER), batch_size=12, workers=0)
    next(iter(loader))
    assert threads()
    del loader
    gc.collect()
    assert eventually(lambda: not threads())


def test_a_forked_child_starts_threads_of_its_own() -> None:
    def do_jobs() -> bool:
        done: list[int] = []
        THREADS.run(THREADS, [partial(done.append, 1)] * 9)
        return len(done) == 9 and all(thread.is_alive() for thread in THREADS._threads)

    def in_child(_: object) -> bool:
        return do_jobs() and len(THREADS._threads) == 3

    assert do_jobs()
    with THREADS._lock:
        child = ForkedChild(in_child)
    assert child.result() is True
    THREADS.close(THREADS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_the_stream_does_not_depend_on_the_number_of_threads(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with several views, of which each has jobs, and with mixed pairs."""
    monkeypatch.setattr(sys.modules["penstock.pipelines.batch.stage"], "_JOB_VALUES", 1)
    monkeypatch.setattr(sys.modules["penstock.pipelines.batch.stage"], "_LEAST_VALUES", 1)
    mixed: Any = {} if dtype == torch.uint8 else {"mixup": 0.5, "cutmix": 0.5}
    pipelines = imagenet_train(32, **JITTER, **mixed), (imagenet_train(32, **JITTER), imagenet_train(24))
    for pipeline in pipelines:
        streams = []
        for num_threads in (3, 1):
            torch.set_num_threads(num_threads)
            with create_loader(PHOTOS, pipeline=pipeline, batch_size=8, workers=0, dtype=dtype, seed=5) as loader:
                streams.append([batch for _ in range(2) for batch in loader])
        for one, other in zip(*streams, strict=True):
            for found, expected in zip(one, other, strict=True):
                pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
                assert all(torch.equal(*pair) for pair in pairs)
    assert THREADS._users == set()
