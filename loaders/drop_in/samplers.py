"""Samplers of the drop-in DataLoader give the order of the samples from any place in any epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Sampler, SequentialSampler

from penstock.loaders.stream.order import Permutation

_CHUNK = 4096  # positions computed at once: 32 KiB, whatever the size of the dataset


class ShuffledSampler(Sampler[int]):
    """Serves every sample once, in the order of (seed, epoch), from position `start` on; stores and draws nothing.

    `len()` is that of the whole epoch. Raises ValueError for an empty dataset, as torch's RandomSampler does.
    """

    def __init__(self, data_source: Sized, seed: int, epoch: int = 0, start: int = 0) -> None:
        self.data_source, self.seed, self.epoch, self.start = data_source, seed, epoch, start
        if len(data_source) == 0:
            raise ValueError("num_samples should be a positive integer value, but got num_samples=0")

    def __iter__(self) -> Iterator[int]:
        length = len(self.data_source)
        permutation = Permutation.of_epoch(length, self.seed, self.epoch)
        for first in range(self.start, length, _CHUNK):
            yield from permutation(np.arange(first, min(first + _CHUNK, length), dtype=np.int64)).tolist()

    def __len__(self) -> int:
        return len(self.data_source)

    def at(self, epoch: int, start: int) -> ShuffledSampler:
        """Return a sampler of this order at `epoch`, from position `start` on."""
        return ShuffledSampler(self.data_source, self.seed, epoch, start)


class OrderedSampler(SequentialSampler):
    """Serves every sample once, in index order, from position `start` on. `len()` is that of the whole epoch."""

    def __init__(self, data_source: Sized, start: int = 0) -> None:
        super().__init__(data_source)
        self.start = start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, len(self.data_source)))

    def at(self, epoch: int, start: int) -> OrderedSampler:
        """Return a sampler from position `start` on; all epochs have the same order."""
        del epoch
        return OrderedSampler(self.data_source, start)


class SkippingSampler:
    """Serves what a sampler of the user draws, without the first `skip` items. `len()` is the sampler's own."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        self.sampler, self.skip = sampler, skip

    def __iter__(self) -> Iterator[Any]:
        # Only the first next() touches the sampler: torch calls iter() once more than it uses.
        yield from islice(self.sampler, self.skip, None)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]
