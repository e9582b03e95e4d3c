"""Measures images/s of a loader alone."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing

from torch import Tensor

from penstock.bench.record.clock import Rate, measure_rate
from penstock.loaders.front.batch import Batch

AnyBatch = Batch | tuple[Tensor, ...]  # begins with images and labels
Batches = Iterable[AnyBatch]


def loader_rate(loader: Batches, *, seconds: float, device: str = "cpu") -> Rate:
    """Measure the loader alone, epoch after epoch; batches are dropped when they arrive on `device`.

    Raises ValueError if an epoch has no batch.
    """
    with closing(endless(loader)) as batches:
        return measure_rate(lambda: next(batches)[1].shape[0], seconds=seconds, device=device)


def endless(loader: Batches) -> Generator[AnyBatch, None, None]:
    """Yield the loader's batches, epoch after epoch. Raises ValueError if an epoch has none."""
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise ValueError("the loader is empty: lower batch_size, or keep the last batch (drop_last=False)")
