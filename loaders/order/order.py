"""The order of an epoch: which sample lies at which position, a pure function of (seed, epoch, position)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.loaders.order.permutation import Index, Permutation

SAMPLER = "feistel-1"  # goes into saved states: a new permutation needs a new name


class Order(Protocol):
    """Compute which sample lies at each position of an epoch; equal on every rank, in memory that does not grow with n.

    One with `lanes` serves position p in lane p % lanes, and Schedule deals whole lanes to ranks; its
    `span_at(epoch, position)` names the positions whose samples are neighbours in the source, about `mixed` of them, so
    that they are worth fetching together.

    Attributes:
        n: positions in an epoch.
        name: says in saved states which order it is, with what decides it apart from the seed.
        repeats: whether a sample may come several times in an epoch. Crops and augmentations are then drawn by
            position, so that each time has its own.
    """

    @property
    def n(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def repeats(self) -> bool: ...

    def __call__(self, epoch: int, positions: Index) -> Index:
        """Return the sample indices at `positions`, both int64 [k]."""
        ...


@dataclass(frozen=True)
class InOrder:
    """Serve the samples in the order of the source."""

    n: int
    name: str = SAMPLER
    repeats: bool = False

    def __call__(self, epoch: int, positions: Index) -> Index:
        return positions


@dataclass(frozen=True)
class Shuffled:
    """Shuffle all samples, anew in each epoch."""

    n: int
    seed: int
    name: str = SAMPLER
    repeats: bool = False

    def __call__(self, epoch: int, positions: Index) -> Index:
        return Permutation.of_epoch(self.n, self.seed, epoch)(positions)
