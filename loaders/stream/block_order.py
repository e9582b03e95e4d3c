"""Shuffles blocks of neighbouring samples, then the samples of a group of blocks: for storage that seeks badly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.loaders.stream.permutation import Index, Permutation
from penstock.pipelines.plan.philox import STREAM_ORDER, random_words

# Numbers of the draws of an epoch; groups follow.
_BLOCKS, _SHORT, _FIRST_GROUP = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class BlockShuffled:
    """Shuffle blocks of the source; the samples of `group` blocks that follow each other are then shuffled together.

    Each block is used up before the next group begins, so each is read once per epoch. The last block of the source may
    be short; its place in the epoch is drawn too. With group = number of blocks every order of the samples is possible.

    Attributes:
        n: number of samples.
        seed: seed of the shuffle.
        block: samples per block.
        group: blocks that are mixed.
    """

    n: int
    seed: int
    block: int
    group: int
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.n < 1 or self.block < 1 or self.group < 1:
            raise ValueError(f"n, block and group must be at least 1, got {self.n}, {self.block} and {self.group}")

    @property
    def name(self) -> str:
        """Name the order in saved states."""
        return f"blocks-1 of {self.block} in groups of {self.group}"

    def __call__(self, epoch: int, positions: Index) -> Index:
        """Return the sample indices at `positions`, both int64 [k]."""
        layout = _Layout.of(self, epoch)
        positions = np.asarray(positions, np.int64)
        groups = layout.groups_at(positions)
        indices = np.empty(len(positions), np.int64)
        for group in np.unique(groups).tolist():
            here = np.flatnonzero(groups == group)
            start, end = layout.start(group), layout.start(group + 1)
            mixed = Permutation.of_epoch(end - start, self.seed, epoch, _FIRST_GROUP + group)(positions[here] - start)
            indices[here] = layout.samples_at(start + mixed)
        return indices


@dataclass(frozen=True)
class _Layout:
    """Lay the blocks of an epoch one after another, in their shuffled order.

    Attributes:
        order: the order.
        full: number of full blocks.
        short: samples of the short block; 0 if there is none.
        short_slot: which place among the blocks it has.
        permutation: of the full blocks.
    """

    order: BlockShuffled
    full: int
    short: int
    short_slot: int
    permutation: Permutation | None

    @classmethod
    def of(cls, order: BlockShuffled, epoch: int) -> _Layout:
        full, short = divmod(order.n, order.block)
        word = int(random_words(order.seed, epoch, np.full(1, _SHORT, np.int64), STREAM_ORDER, 1)[0, 0])
        short_slot = (word * (full + 1) >> 32) if short else full
        permutation = Permutation.of_epoch(full, order.seed, epoch, _BLOCKS) if full else None
        return cls(order, full, short, short_slot, permutation)

    def start(self, group: int) -> int:
        """Return the position at which `group` begins, or the epoch ends."""
        slot = min(group * self.order.group, self.full + (self.short > 0))
        return slot * self.order.block - (self.order.block - self.short) * (self.short > 0 and slot > self.short_slot)

    def groups_at(self, positions: Index) -> Index:
        """Return the number of the group of each position."""
        shift = np.where(positions >= self._after_short, self._missing, 0)
        groups: Index = (positions + shift) // (self.order.block * self.order.group)
        return groups

    def samples_at(self, places: Index) -> Index:
        """Return the samples that lie at `places` where blocks follow each other unmixed."""
        after = places >= self._after_short
        slots, offsets = np.divmod(places + np.where(after, self._missing, 0), self.order.block)
        is_short = (slots == self.short_slot) & (self.short > 0)
        blocks = slots - ((slots > self.short_slot) & (self.short > 0))
        found = np.full(len(places), self.full, np.int64)  # the short block is the last of the source
        if self.permutation is not None:
            found[~is_short] = self.permutation(blocks[~is_short])
        return found * self.order.block + offsets

    @property
    def _missing(self) -> int:
        """Samples that the short block lacks."""
        return self.order.block - self.short if self.short else 0

    @property
    def _after_short(self) -> int:
        """Position at which the block after the short one begins."""
        return self.short_slot * self.order.block + self.short
