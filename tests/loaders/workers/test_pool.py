"""The pool of worker processes: answers in order, few ahead, errors that name the sample, nothing left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from processes import child_pids, eventually

from penstock.loaders.workers.pool import map_in_workers
from penstock.pipelines.errors import LoaderError


def square(item: int, working_on: Callable[[int], None]) -> int:
    working_on(item)
    return item * item


def look_up(item: str, working_on: Callable[[int], None]) -> str | None:
    return os.environ.get(item)


def fail_at_seven(item: int, working_on: Callable[[int], None]) -> int:
    working_on(item)
    return 1 // (7 - item)


def die_at_seven(item: int, working_on: Callable[[int], None]) -> int:
    working_on(item)
    if item == 7:
        signal.raise_signal(signal.SIGKILL)
    return item


class Drawn:
    """Items, and how many of them were drawn."""

    def __init__(self, count: int) -> None:
        self.count, self.drawn = count, 0

    def __iter__(self) -> Iterator[int]:
        for item in range(self.count):
            self.drawn += 1
            yield item


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order_and_few_items_are_drawn_ahead(workers: int) -> None:
    items = Drawn(40)
    results = map_in_workers(square, iter(items), workers)
    assert next(results) == 0
    assert items.drawn <= 1 + 3 * workers
    assert list(results) == [item * item for item in range(1, 40)]
    assert eventually(lambda: not child_pids())


def test_an_error_and_a_death_name_the_sample() -> None:
    for work, code in ((fail_at_seven, "E-DATASET"), (die_at_seven, "E-WORKER")):
        with pytest.raises(LoaderError, match=code) as caught:
            list(map_in_workers(work, iter(range(20)), 2))
        assert caught.value.sample == 7
        assert eventually(lambda: not child_pids())
    with pytest.raises(ZeroDivisionError):
        list(map_in_workers(fail_at_seven, iter(range(20)), 0))


def test_workers_have_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server runs before a notebook sets the credentials of a storage."""
    monkeypatch.delenv("AWS_TEST", raising=False)
    assert list(map_in_workers(look_up, iter(["AWS_TEST"]), 1)) == [None]
    monkeypatch.setenv("AWS_TEST", "now")
    assert list(map_in_workers(look_up, iter(["AWS_TEST"]), 1)) == ["now"]


def test_work_that_does_not_pickle_is_refused_and_no_process_is_left() -> None:
    with pytest.raises(ValueError, match=r"function cannot be sent to worker processes.*use workers=0"):
        list(map_in_workers(lambda item, _: item, iter(range(20)), 2))
    assert eventually(lambda: not child_pids())
