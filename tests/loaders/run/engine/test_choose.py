"""Threads or processes: what "auto" chooses for each source."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faulty_source import FaultySource, divide_by_zero
from make_planner import make_planner
from memory_source import MemorySource
from photo_folder import photo

from penstock.loaders.run.engine import choose
from penstock.loaders.run.engine.choose import open_engine
from penstock.loaders.run.engine.process_engine import ProcessOptions

PHOTOS = MemorySource([photo(number) for number in range(8)])
PIXELS = MemorySource(list(np.zeros((8, 20, 30, 3), np.uint8)))


class Computing(FaultySource):
    holds_interpreter_lock = True


class InScript(MemorySource):
    """A class as a script or a notebook defines it."""


InScript.__module__ = "__main__"


class ComputingInScript(InScript):
    holds_interpreter_lock = True


ComputingInScript.__module__ = "__main__"


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (PHOTOS, {}, "ThreadEngine"),
        (PHOTOS, {"start_method": "spawn"}, "ProcessEngine"),
        (PHOTOS, {"workers_are": "processes"}, "ProcessEngine"),
        (FaultySource(8, {0: divide_by_zero}), {}, "ThreadEngine"),
        (Computing(8, {}), {}, "ProcessEngine"),
        (Computing(8, {}), {"workers": 1}, "ProcessEngine"),
        (Computing(8, {}), {"workers_are": "threads"}, "ThreadEngine"),
        (Computing(8, {}), {"workers": 0}, "ThreadEngine"),
        (PIXELS, {}, "ProcessEngine"),
        (PIXELS, {"workers": 1}, "ThreadEngine"),
        (InScript(list(np.zeros((8, 20, 30, 3), np.uint8))), {}, "ThreadEngine"),
        (ComputingInScript([photo(0)] * 8), {}, "ProcessEngine"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, FaultySource) else str(value),
)
@pytest.mark.parametrize("decoder", ["auto", "simplejpeg", "pillow"])
def test_auto_chooses_threads_unless_the_source_holds_the_interpreter_lock(
    source: Any, options: dict[str, Any], expected: str, decoder: str
) -> None:
    engine = open_engine("torch", make_planner(source, decoder=decoder), ProcessOptions(**{"workers": 2, **options}))
    assert type(engine).__name__ == expected
    engine.close()


def test_only_the_first_sample_is_read_and_only_once() -> None:
    read: list[int] = []
    source = MemorySource([photo(number) for number in range(8)])
    plain = source.read
    source.read = lambda index: read.append(index) or plain(index)  # type: ignore[method-assign, func-returns-value]
    open_engine("torch", make_planner(source), ProcessOptions(workers=2)).close()
    assert read == [0]


@pytest.mark.parametrize(
    ("costs", "image_us", "workers", "suffices"),
    [
        ([(300, 300)], 2000, 4, True),  # albumentations on photos
        ([(300, 300)], 300, 4, False),  # the same on small images
        ([(5000, 5000)], 2000, 2, False),  # computes in Python
        ([(5000, 0)], 0, 16, True),  # releases the lock
        ([(300, 300), (0, math.inf)], 10**6, 2, False),  # draws from the global state
        ([(300, 300), (300, 0)], 2000, 4, True),
    ],
)
def test_threads_run_transforms_if_the_lock_suffices(
    costs: list[tuple[float, float]], image_us: float, workers: int, suffices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "default_workers", lambda: 16)
    own: Any = [SimpleNamespace(measure_lock=lambda cost=cost: cost) for cost in costs]
    assert choose._lock_suffices(own, workers, lambda: image_us) is suffices
