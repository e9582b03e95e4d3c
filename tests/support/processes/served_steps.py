"""The stream of a loader as comparable steps of rows, which are joined if ranks share them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.loaders.front.batch import Batch
from penstock.loaders.front.loader import Loader


class Pixels:
    """Pixels of one view of a sample, compared exactly; with `rounds`, another rounding is equal too.

    DALI's resize is antialiased like torch's, with sums in another precision: the mean distance is at most one level.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: torch.Tensor, *, rounds: bool = False) -> None:
        self.values, self.rounds = values.contiguous().numpy().copy(), rounds
        self.crc = zlib.crc32(self.values.tobytes())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pixels):
            return NotImplemented
        if not self.rounds and not other.rounds:
            return self.crc == other.crc and self.values.shape == other.values.shape
        distance = np.abs(self.values.astype(int) - other.values.astype(int))
        return bool(distance.mean() <= 1 and np.quantile(distance, 0.999) <= 4)

    def __repr__(self) -> str:
        return f"Pixels({self.crc:08x})"


class Row(NamedTuple):
    """One sample of a batch, with the geometry of all views, and its text or tokens."""

    index: int
    label: Any
    window: Any
    flip: Any
    place: Any
    turn: Any
    pixels: tuple[Pixels, ...]
    text: Any = None


class Step(NamedTuple):
    """All values that two equal batches share."""

    epoch: int
    number: int
    rows: list[Row]


def as_step(batch: Batch, *, rounds: bool = False) -> Step:
    """Return a batch as a step; `rounds`: see Pixels."""
    views = batch.images if isinstance(batch.images, tuple) else (batch.images,)
    pixels = [tuple(Pixels(image, rounds=rounds) for image in images) for images in zip(*views, strict=True)]
    drawn = batch.index, batch.labels, batch.windows, batch.flips, batch.places, batch.turns
    texts = batch.get("text", [None] * len(pixels))
    texts = texts.tolist() if isinstance(texts, torch.Tensor) else texts
    rows = zip(*(values.tolist() for values in drawn), pixels, texts, strict=True)
    return Step(batch.epoch, batch.step, [Row(*row) for row in rows])


def as_steps(batches: Iterable[Batch], *, rounds: bool = False) -> list[Step]:
    """Return batches as steps."""
    return [as_step(batch, rounds=rounds) for batch in batches]


def serve_steps(loader: Loader, epochs: int = 2, *, rounds: bool = False) -> list[Step]:
    """Return what the loader serves until `epochs` epochs are over."""
    served = []
    while loader.epoch < epochs:
        served += as_steps(loader.batches(), rounds=rounds)
    return served


def join(ranks: Sequence[Sequence[Step]]) -> list[Step]:
    """Return the steps that ranks share, with the parts joined in the order of the ranks."""
    joined = []
    for parts in zip(*ranks, strict=True):
        assert len({part[:2] for part in parts}) == 1
        joined.append(parts[0]._replace(rows=[row for part in parts for row in part.rows]))
    return joined
