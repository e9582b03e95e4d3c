"""Epochs of any length: each continues in another order where the previous epoch stopped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.order import Order
from penstock.loaders.order.permutation import Index


@dataclass(frozen=True)
class VirtualEpochs:
    """Serve `n` samples per epoch of `order`, pass after pass.

    pass      3 7 0 4 1 6 2 5|1 5 7 4 0 6 3 2|4 ...   one epoch of `order` after the other
    epochs   |3 7 0 4 1|6 2 5 1 5|7 4 0 6 3|2 4 ...   n = 5

    So no sample repeats before all others were served, unless steps leave out the end of an epoch. An epoch in which
    one pass ends and the next begins may serve a sample twice.

    Attributes:
        order: the order of a pass, such as Shuffled or BlockShuffled.
        n: samples per epoch.
    """

    order: Order
    n: int
    repeats: bool = True

    @property
    def name(self) -> str:
        return f"epochs-1 of {self.n}: {self.order.name}"

    @property
    def lanes(self) -> int:
        """Number of lanes of `order`, see BlockShuffled; a pass continues in the same lanes in each epoch."""
        return getattr(self.order, "lanes", 1)

    def shift(self, epoch: int) -> int:
        """Return the place of the first sample of `epoch` in the sequence of all passes."""
        return epoch * self.n

    def __call__(self, epoch: int, positions: Index) -> Index:
        passes, places = np.divmod(self.shift(epoch) + np.asarray(positions, np.int64), self.order.n)
        indices = np.empty(len(places), np.int64)
        for number in np.unique(passes).tolist():
            some = passes == number
            indices[some] = self.order(number, places[some])
        return indices

    def span_at(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Return the part in this epoch of the range that is mixed with `position`, as BlockShuffled.span_at."""
        shift = self.shift(epoch)
        number, place = divmod(shift + position, self.order.n)
        span = self.order.span_at(number, place) if isinstance(self.order, BlockShuffled) else None
        if span is None:
            return None
        begin = number * self.order.n - shift  # of the pass
        return max(0, begin + span[0]), min(self.n, begin + span[1])
