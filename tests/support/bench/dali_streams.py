"""The stream of a loader as arrays, to compare two backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders import create_loader
from penstock.loaders.front.batch import Batch
from penstock.loaders.front.loader import Loader
from penstock.loaders.order.ledger import EpochLedger
from penstock.pipelines import imagenet_train

WORKERS = [{"workers": 0}, {"workers": 2, "readers": 2, "prefetch": 3}]
IDS = ["in the process", "threads"]


def open_loader(source: Any, **settings: Any) -> Loader:
    """A loader of uint8 batches, by default on DALI and without workers."""
    defaults = {"backend": "dali", "pipeline": imagenet_train(32), "dtype": torch.uint8, "seed": 7, "workers": 0}
    return create_loader(source, **{**defaults, **settings})


def pixels_of(batch: Batch) -> npt.NDArray[np.uint8]:
    """A copy as uint8 [batch, height, width, 3]."""
    return batch.images.permute(0, 2, 3, 1).cpu().contiguous().numpy().copy()


@dataclass(frozen=True, eq=False)
class Stream:
    """The served rows in order with (epoch, step) in `places`, the ledgers, and the loader's description."""

    places: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    pixels: npt.NDArray[np.uint8]
    ledgers: tuple[EpochLedger, ...]
    about: dict[str, object]

    @property
    def bad(self) -> list[tuple[int, str, int, int]]:
        """(sample, code, substitute, row) of every bad sample; the causes depend on the decoder."""
        return [(b.sample, b.code, b.substitute, b.row) for ledger in self.ledgers for b in ledger.bad]

    def numbers(self) -> list[Any]:
        """Everything that must be equal on every backend, except the pixels."""
        counts = [(ledger.planned, ledger.delivered, ledger.replaced) for ledger in self.ledgers]
        columns = (self.places, self.index, self.labels, self.windows, self.flips)
        return [*(column.tolist() for column in columns), self.bad, counts]

    def distance(self, other: Stream) -> npt.NDArray[np.float64]:
        """Mean absolute difference of each row's pixels, in levels."""
        return np.abs(self.pixels.astype(np.int16) - other.pixels).mean(axis=(1, 2, 3))


def stream_of(loader: Loader, epochs: int = 1) -> Stream:
    """The stream of `loader` up to the end of epoch `epochs` - 1."""
    rows: list[tuple[Any, ...]] = []
    while loader.epoch < epochs:
        for batch in loader.batches():
            place = np.full((len(batch.index), 2), (batch.epoch, batch.step))
            rows.append((place, batch.index, batch.labels.cpu().numpy(), batch.windows, batch.flips, pixels_of(batch)))
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    return Stream(*columns, ledgers=tuple(loader.ledgers()), about=loader.describe())


def stream(source: Any, *, epochs: int = 1, **settings: Any) -> Stream:
    """The stream of a loader over `source` (see open_loader)."""
    with open_loader(source, **settings) as loader:
        return stream_of(loader, epochs)


def assert_near(dali: Stream, ours: Stream, level: float = 1.0) -> None:
    """Everything except the pixels is equal; each image differs by at most `level` levels on average."""
    assert dali.numbers() == ours.numbers()
    assert dali.distance(ours).max() <= level


def assert_taken(dali: Stream, ours: Stream) -> None:
    """The same, and DALI accepted every batch: a refused one is made again without DALI, and would be equal anyway."""
    assert_near(dali, ours)
    assert dali.about["batches_refused"] == 0


def assert_refused(dali: Stream, batches: int, options: dict[str, Any]) -> None:
    """`batches` served batches were refused; threads have started the next epoch, with some more."""
    ahead = options["readers"] + options["prefetch"] + 1 if options["workers"] else 0
    refused = dali.about["batches_refused"]
    assert isinstance(refused, int)
    assert batches <= refused <= batches + ahead
