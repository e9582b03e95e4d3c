"""Compares the batches of two engines row by row: order, labels, crops, ledger, and distances of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LEVELS = 256


class Tolerance(NamedTuple):
    """The allowed distance between the pixels of two engines; order, labels, crops and ledger must be equal.

    Attributes:
        mean: largest mean distance, in uint8 levels.
        p99_9: largest 99.9th percentile of the distances, in uint8 levels.
    """

    name: str
    mean: float
    p99_9: int
    why: str


EXACT = Tolerance("exact", 0.0, 0, "both decode and resize with Penstock's code on the CPU")
DALI_CPU = Tolerance("dali on the CPU", 1.0, 2, "DALI decodes and resizes with its own code")
DALI_GPU = Tolerance("dali on a GPU", 2.0, 16, "the same, on a GPU; not yet measured on one")
TOLERANCES = (EXACT, DALI_CPU, DALI_GPU)


@dataclass(frozen=True)
class ServedBatch:
    """Hold rows of one batch as one engine served them, in host memory.

    Attributes:
        place: (epoch, step).
        index: samples, -1 for padding, int64 [rows].
        labels: int64 [rows].
        windows: crops as (x, y, width, height), int32 [rows, 4].
        flips: bool [rows].
        pixels: uint8 [rows, height, width, 3].
        replaced: row -> (sample, substitute, code) from the ledger.
    """

    place: tuple[int, int]
    index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    pixels: npt.NDArray[np.uint8]
    replaced: dict[int, tuple[int, int, str]]


class EnginePair:
    """Collect the differences of two engines: rows, and an exact histogram of |a - b| over their uint8 values.

    Attributes:
        differing: "order", "labels", "crops" or "ledger" -> number of rows in which they differ.
    """

    def __init__(self, first: str, second: str, tolerance: Tolerance) -> None:
        self.first, self.second, self.tolerance = first, second, tolerance
        self._histogram = np.zeros(LEVELS, np.int64)
        self._worst_image: int | None = None
        self._worst_mean = 0.0
        self.differing = dict.fromkeys(("order", "labels", "crops", "ledger"), 0)
        self._first_place: dict[str, str] = {}

    def add(self, first: ServedBatch, second: ServedBatch) -> None:
        """Compare one batch of both; pixels only in rows where both have an image."""
        for what, rows in _differing_rows(first, second).items():
            if rows.any():
                self.differing[what] += int(rows.sum())
                self._first_place.setdefault(what, f"step {first.place[1]}, row {int(rows.argmax())}")
        for row in np.flatnonzero((first.index >= 0) & (second.index >= 0)).tolist():
            self._add_pixels(int(first.index[row]), first.pixels[row], second.pixels[row])

    def _add_pixels(self, index: int, first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8]) -> None:
        if np.array_equal(first, second):
            self._histogram[0] += first.size
            return
        levels = np.maximum(first, second) - np.minimum(first, second)
        counts = np.bincount(levels.reshape(-1), minlength=LEVELS)
        self._histogram += counts
        mean = _mean(counts)
        if mean > self._worst_mean:
            self._worst_image, self._worst_mean = index, mean

    def distances(self) -> dict[str, Any]:
        """Return mean, 99.9th percentile (inverted CDF) and maximum in levels, and the image with the largest mean."""
        rank = -(-int(self._histogram.sum()) * 999 // 1000)
        return {
            "mean": _mean(self._histogram),
            "p99_9": int(np.searchsorted(np.cumsum(self._histogram), rank)),
            "max": int(np.flatnonzero(self._histogram).max(initial=0)),
            "worst_image": self._worst_image,
            "worst_image_mean": self._worst_mean,
        }

    def outside(self) -> list[str]:
        """Return why the pair is outside its tolerance; an empty list if it is inside."""
        found, limit = self.distances(), self.tolerance
        reasons = [
            f"{what} differ{'s' * (what in ('order', 'ledger'))} in {count:,} row{'s' * (count > 1)}, "
            f"first at {self._first_place[what]}"
            for what, count in self.differing.items()
            if count
        ]
        if found["mean"] > limit.mean:
            reasons.append(f"mean distance {found['mean']:.3g} is above {limit.mean:g}")
        if found["p99_9"] > limit.p99_9:
            reasons.append(f"99.9th percentile {found['p99_9']} is above {limit.p99_9}")
        return reasons

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record of the pair."""
        return {
            "engines": [self.first, self.second],
            "equal": {what: not count for what, count in self.differing.items()},
            "differing_rows": self.differing,
            "pixels": self.distances(),
            "tolerance": self.tolerance.name,
            "outside": self.outside(),
        }


def _mean(histogram: npt.NDArray[np.int64]) -> float:
    return float(histogram @ np.arange(LEVELS)) / max(1, int(histogram.sum()))


def _differing_rows(first: ServedBatch, second: ServedBatch) -> dict[str, npt.NDArray[np.bool_]]:
    replaced = [first.replaced.get(row) != second.replaced.get(row) for row in range(len(first.index))]
    return {
        "order": (first.index != second.index) | (first.place != second.place),
        "labels": first.labels != second.labels,
        "crops": (first.windows != second.windows).any(1) | (first.flips != second.flips),
        "ledger": np.array(replaced, bool),
    }
