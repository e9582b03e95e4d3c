"""A loader used by several threads: one takes batches, any may close it, the others get an error."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_source import FaultySource, OpenFifo
from processes import eventually

from penstock.loaders import LoaderError, create_loader
from penstock.loaders.front import loader as front_loader
from penstock.loaders.front.loader import Loader
from penstock.loaders.run.engine import thread_engine
from penstock.loaders.run.workers.watch import WatchedIterator
from penstock.pipelines import imagenet_train

BLOCKED = 9  # the sample whose read blocks until go_on is called


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "slow storage")
    return tmp_path / "slow storage"


def go_on(fifo: Path, taking: threading.Thread) -> None:
    """Let the blocked read of `taking` continue as soon as it waits; the thread may end before it reads."""
    while taking.is_alive():
        with contextlib.suppress(OSError):  # there is no reader yet
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            break
        time.sleep(0.01)


@pytest.fixture(params=["processes", "threads", "this process"])
def loader(request: pytest.FixtureRequest, fifo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """A loader that waits less long than usual for blocked threads when it is closed."""
    monkeypatch.setattr(front_loader, "_CLOSE_S", 1.0)
    monkeypatch.setattr(thread_engine, "_LEAVE_S", 0.5)
    monkeypatch.setattr(WatchedIterator, "grace_s", 0.3)
    options: dict[str, Any] = {"workers": 0 if request.param == "this process" else 1}
    if request.param == "threads":
        options.update(backend="dali", readers=1)
    source = FaultySource(24, {BLOCKED: OpenFifo(str(fifo))})
    made = create_loader(
        source, pipeline=imagenet_train(32), batch_size=4, dtype=torch.uint8, shuffle=False, prefetch=1, **options
    )
    yield made
    made.close()


class Taking(threading.Thread):
    """Takes all batches; `got` ends with the error that was raised."""

    def __init__(self, take: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._next, self.got = take, []  # type: ignore[var-annotated]
        self.start()

    def run(self) -> None:
        try:
            while True:
                self.got.append(self._next().index.tolist())
        except BaseException as error:
            self.got.append(error)


def test_a_waiting_thread_is_told_that_another_thread_closed_the_loader(loader: Loader, fifo: Path) -> None:
    stream = loader.batches()
    taking = Taking(lambda: next(stream))
    assert eventually(lambda: len(taking.got) == 2, 60)
    closing = threading.Thread(target=loader.close, daemon=True)
    closing.start()
    closing.join(600)
    assert not closing.is_alive()  # even if the waiting thread makes the batch
    if not loader.describe()["workers"]:
        go_on(fifo, taking)
    taking.join(600)
    *served, error = taking.got
    assert isinstance(error, LoaderError), error
    assert error.code == "E-MISUSE"
    assert "closed" in error.cause
    assert [batch[0] for batch in served] == list(range(0, 4 * len(served), 4))


def test_calls_while_another_thread_waits_are_refused_and_take_no_batch(loader: Loader, fifo: Path) -> None:
    stream = loader.batches()
    taking = Taking(lambda: next(stream))
    assert eventually(lambda: len(taking.got) == 2, 60)
    others = [Taking(lambda: next(stream)) for _ in range(2)] + [Taking(iter(loader).__next__)]
    for other in others:
        other.join(600)
        (error,) = other.got
        assert isinstance(error, LoaderError), error
        assert error.code == "E-MISUSE"
        assert "another thread" in error.cause
    go_on(fifo, taking)
    taking.join(600)
    *served, error = taking.got
    assert isinstance(error, StopIteration)
    assert [number for batch in served for number in batch] == list(range(24))
