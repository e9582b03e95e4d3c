"""Samplers of the drop-in DataLoader give the order of the samples from any place in any epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import RandomSampler

from penstock.loaders.order.permutation import Permutation

_CHUNK = 4096  # positions computed at once: 32 KiB, whatever the size of the dataset


class ShuffledSampler(RandomSampler):
    """Serves every sample once, in the order of (seed, epoch), from position `start` on; stores and draws nothing.

    Each pass is the next epoch's, unless set_epoch or `at` says otherwise. `len()` is that of the whole epoch. Raises
    ValueError for an empty dataset, as torch's RandomSampler does.
    """

    def __init__(self, data_source: Sized, seed: int, epoch: int = 0, start: int = 0) -> None:
        super().__init__(data_source)
        self.seed, self.epoch, self.start = seed, epoch, start

    def __iter__(self) -> Iterator[int]:
        length, epoch = len(self.data_source), self.epoch
        self.epoch += 1
        permutation = Permutation.of_epoch(length, self.seed, epoch)
        for first in range(self.start, length, _CHUNK):
            yield from permutation(np.arange(first, min(first + _CHUNK, length), dtype=np.int64)).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`."""
        self.epoch = epoch

    def at(self, epoch: int, start: int) -> ShuffledSampler:
        """Return a sampler of this order at `epoch`, from position `start` on."""
        return ShuffledSampler(self.data_source, self.seed, epoch, start)
