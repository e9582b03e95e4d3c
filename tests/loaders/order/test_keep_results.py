"""Results are kept while their owner exists: a dropped order leaves neither memory nor descriptors."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from penstock.loaders.order.bucket_order import make_bucketed
from penstock.loaders.order.order import make_weighted
from penstock.loaders.order.schedule import Schedule, keep_results


class Owner:
    """An object that allows weak references."""


def test_results_are_computed_once_per_owner_and_released_with_it() -> None:
    calls: list[int] = []

    @keep_results(2)
    def double(owner: Owner, number: int) -> Owner:
        calls.append(number)
        return Owner()

    first, second = Owner(), Owner()
    assert double(first, 1) is double(first, 1) is not double(second, 1)
    assert calls == [1, 1]
    double(first, 2), double(first, 3), double(first, 1)
    assert calls == [1, 1, 2, 3, 1], "more than two results were kept"
    result = weakref.ref(double(second, 1))
    assert result() is not None
    del second
    gc.collect()
    assert result() is None


@pytest.mark.parametrize("kind", ["weights", "buckets"])
def test_a_dropped_order_keeps_no_memory(kind: str) -> None:
    order = (
        make_weighted(np.ones(40), 40, seed=1)
        if kind == "weights"
        else make_bucketed(np.arange(40, dtype=np.uint8) % 2, ((8, 8), (8, 9)), 1, shuffled=True)
    )
    schedule, gone = Schedule(n=40, batch_size=4, order=order), weakref.ref(order)
    for epoch in range(3):
        assert schedule.steps(0, epoch) == 10
        assert len(schedule.batch(epoch, 0)) == 4
    del order, schedule
    gc.collect()
    assert gone() is None
