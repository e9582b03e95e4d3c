"""Shuffles blocks of neighbouring samples, then the samples of a group of blocks: for storage that seeks badly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from penstock.loaders.order.block_layout import BlockSizes, EvenLayout, UnevenLayout
from penstock.loaders.order.permutation import Index, Permutation, Permutations

_MAX_LANES = 64
# Numbers of the draws of an epoch; windows follow.
_BLOCKS, _FIRST_WINDOW = 1, 2


@dataclass(frozen=True, kw_only=True)
class BlockShuffled:
    """Shuffle blocks of the source, deal them to lanes, and mix the samples of some blocks of a lane at a time.

    Position p is served by lane p % lanes. All lanes together mix about `group` blocks at a time. Each block is used up
    before the next ones of its lane begin, so it is read once per epoch, by one rank if a Schedule deals whole lanes to
    ranks. With group = number of blocks every order of the blocks is possible, and nearly every one of the samples.

    Attributes:
        n: number of samples.
        seed: seed of the shuffle.
        block: samples per block.
        group: blocks that are mixed, in all lanes; counted down to a multiple of the lanes.
        sizes: samples of each block, instead of `block`.
    """

    n: int
    seed: int
    block: int
    group: int
    sizes: BlockSizes | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.sizes is not None and self.sizes.starts[-1] != self.n:
            raise ValueError(f"blocks must hold n = {self.n} samples, got {self.sizes.starts[-1]}")

    @property
    def lanes(self) -> int:
        """Number of lanes, a power of two: 64, or as many as mix at least two blocks each."""
        return min(_MAX_LANES, 1 << max(0, self.group.bit_length() - 2))

    @property
    def mixed(self) -> int:
        """Number of samples that are mixed at a time, about."""
        return self.group // self.lanes * self.lanes * self.block

    @property
    def name(self) -> str:
        blocks = self.block if self.sizes is None else f"sizes {self.sizes.digest}"
        return f"blocks-2 of {blocks} in groups of {self.group} over {self.lanes} lanes"

    def __call__(self, epoch: int, positions: Index) -> Index:
        layout = _layout(self, epoch)
        places = layout.lanes.places_at(np.asarray(positions, np.int64))
        windows = layout.windows_at(places)
        mix = Permutations.of_epoch(windows.sizes, self.seed, epoch, _FIRST_WINDOW + windows.numbers)
        return layout.samples_at(windows.starts + mix(places - windows.starts))

    def span_at(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Return the positions (first, end) that are mixed with `position`; None if these are not one range."""
        return _layout(self, epoch).span_at(position)


@lru_cache(maxsize=4)
def _layout(order: BlockShuffled, epoch: int) -> EvenLayout | UnevenLayout:
    num_blocks = order.n // order.block if order.sizes is None else len(order.sizes.starts) - 1
    shuffled = Permutation.of_epoch(num_blocks, order.seed, epoch, _BLOCKS) if num_blocks else None
    mixed = order.group // order.lanes
    if order.sizes is None:
        return EvenLayout(order.n, order.block, order.lanes, mixed, shuffled)
    assert shuffled is not None
    return UnevenLayout(order.sizes, order.lanes, mixed, shuffled)
