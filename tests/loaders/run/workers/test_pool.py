"""The pool of worker processes: results in order, few ahead, errors that name the sample, nothing left behind."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from make_planner import make_planner
from memory_source import MemorySource
from processes import child_pids, eventually

from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.process_engine import ProcessEngine, ProcessOptions
from penstock.loaders.run.workers import watch
from penstock.loaders.run.workers.pool import map_in_workers
from penstock.pipelines.errors import LoaderError


def square(item: int, working_on: Callable[[int], None]) -> int:
    working_on(item)
    return item * item


def look_up(item: str, working_on: Callable[[int], None]) -> str | None:
    return os.environ.get(item)


def fail_at_seven(item: int, working_on: Callable[[int], None]) -> int:
    working_on(item)
    return 1 // (7 - item)


class Drawn:
    """Items, and the number of items drawn so far."""

    def __init__(self, count: int) -> None:
        self.count, self.drawn = count, 0

    def __iter__(self) -> Iterator[int]:
        for item in range(self.count):
            self.drawn += 1
            yield item


@pytest.mark.parametrize("workers", [0, 2])
def test_results_are_in_order_and_few_items_are_drawn_ahead(workers: int) -> None:
    items = Drawn(40)
    results = map_in_workers(square, iter(items), workers)
    assert next(results) == 0
    assert items.drawn <= 1 + 3 * workers
    assert list(results) == [item * item for item in range(1, 40)]
    assert eventually(lambda: not child_pids())


def test_an_error_names_the_sample() -> None:
    with pytest.raises(LoaderError, match="E-DATASET") as caught:
        list(map_in_workers(fail_at_seven, iter(range(20)), 2))
    assert caught.value.sample == 7
    assert eventually(lambda: not child_pids())
    with pytest.raises(ZeroDivisionError):
        list(map_in_workers(fail_at_seven, iter(range(20)), 0))


def test_workers_have_the_current_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server starts before a notebook sets the credentials of a storage."""
    monkeypatch.delenv("AWS_TEST", raising=False)
    assert list(map_in_workers(look_up, iter(["AWS_TEST"]), 1)) == [None]
    monkeypatch.setenv("AWS_TEST", "now")
    assert list(map_in_workers(look_up, iter(["AWS_TEST"]), 1)) == ["now"]


def test_work_that_does_not_pickle_is_refused_and_no_process_is_left() -> None:
    with pytest.raises(ValueError, match=r"function cannot be sent to worker processes.*pass workers=0"):
        list(map_in_workers(lambda item, _: item, iter(range(20)), 2))
    assert eventually(lambda: not child_pids())


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (RuntimeError("can't start new thread"), "E-MEM", "can't start new thread"),
        (MemoryError(), "E-MEM", "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "E-MEM", "Cannot allocate memory"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "E-MEM", "temporarily"),
        (OSError(errno.EMFILE, "Too many open files"), "E-FD", "Too many open files"),
        (OSError(errno.ENFILE, "Too many open files in system"), "E-FD", "in system"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "E-WORKER", "reset by peer"),
        (EOFError(), "E-WORKER", "no details"),
        (RuntimeError("from a data set"), "", ""),  # other errors are not changed
        (KeyboardInterrupt(), "", ""),
        (ValueError(), "", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_a_failed_start_is_reported_with_its_cause(
    error: BaseException, code: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(watch, "worker_context", fail)
    engine = ProcessEngine("torch", make_planner(MemorySource([b""] * 8)), ProcessOptions(workers=1))
    for start in (lambda: list(map_in_workers(square, iter(range(4)), 1)), lambda: engine.seek(Cursor(0, 0))):
        with pytest.raises(LoaderError if code else type(error)) as caught:
            start()
        assert caught.value.__cause__ is error if code else caught.value is error
        assert getattr(caught.value, "code", "") == code
        assert told in getattr(caught.value, "cause", "")


def test_a_late_end_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """A closed queue refuses items of a thread that nobody waits for."""
    ended = threading.Event()

    def put_into_closed() -> None:
        time.sleep(0.2)
        ended.set()
        raise ValueError("Queue is closed")

    watch._within(0.05, put_into_closed)
    assert ended.wait(10)
    time.sleep(0.1)
    assert capfd.readouterr().err == ""
