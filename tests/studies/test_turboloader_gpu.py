"""The study of TurboLoader on a GPU: what it counts, what fails, and the table's row, with a stand-in for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import turboloader_gpu
from records_table import records_table


class Opened:
    """Opens loaders of batches of 4 that take `seconds` of a clock each; the way "gpu" cannot be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.now, self.seconds, self.waits = 0.0, seconds, 0
        monkeypatch.setattr(turboloader_gpu.time, "perf_counter", lambda: self.now)

    def __call__(self, paths: Sequence[str], way: str, batch_size: int) -> Iterable[Any]:
        if way not in self.seconds:
            raise OSError("no such decoder")
        return Batches(self, self.seconds[way], len(paths) // batch_size)

    def synchronize(self) -> None:
        self.now += 1.0  # what was still under way on the device counts
        self.waits += 1


class Batches:
    def __init__(self, clock: Opened, seconds: float, number: int) -> None:
        self.clock, self.seconds, self.number = clock, seconds, number

    def __iter__(self) -> Any:
        for _ in range(self.number):
            self.clock.now += self.seconds
            yield np.zeros((4, 3, 2, 2)), [0] * 4


def test_the_best_way_is_the_record_and_what_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch, nvimgcodec=0.5, cpu=0.25)
    record = turboloader_gpu.measure(["x"] * 17, 4, 2, opened, opened.synchronize)
    assert opened.waits == 2 * 3  # each epoch, the first one too
    best, *ways = record["measured"]
    assert (best["kind"], best["name"], best["images_per_s"]) == ("loader", "cpu", 16 / 2.0)
    assert [way["images_per_s"] for way in ways] == [16 / 3.0, 16 / 2.0]
    assert record["failed"] == {"gpu": "OSError: no such decoder"}
    path = tmp_path / "gpu-turboloader.json"
    path.write_text(json.dumps(record))
    assert records_table([path]).splitlines()[-1] == "| gpu-turboloader | 8 | 8 to 8 | - | - | - | - | - |"


def test_a_package_of_which_nothing_works_makes_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    with pytest.raises(RuntimeError, match="no way of TurboLoader works here"):
        turboloader_gpu.measure(["x"] * 8, 4, 1, opened, opened.synchronize)
