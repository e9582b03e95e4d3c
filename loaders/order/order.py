"""The order of an epoch: which sample lies at which position, a pure function of (seed, epoch, position)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.loaders.order.permutation import Index, Permutation
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.plan.philox import STREAM_DRAW, random_words

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """Draw the sample at each position by inverting the cumulated weights.

    Attributes:
        n: draws in an epoch.
        seed: seed of the draws.
        cumulated: float64 [samples], sums of the weights up to and with each sample; 8 bytes per sample, shared by all
            workers.
        digest: hex digest of the weights.
    """

    n: int
    seed: int
    cumulated: SharedArray
    digest: str
    repeats: bool = True

    @property
    def name(self) -> str:
        return f"weighted-1 {self.digest} {self.n}"

    def __call__(self, epoch: int, positions: Index) -> Index:
        words = random_words(self.seed, epoch, np.asarray(positions, np.int64), STREAM_DRAW, 2)
        uniform = ((words[:, 0] << np.uint64(21)) | (words[:, 1] >> np.uint64(11))).astype(np.float64) * 2.0**-53
        sums = self.cumulated.array
        # A product that is rounded up to the whole sum must not find a sample after the last one with a weight.
        sought = np.minimum(uniform * sums[-1], np.nextafter(sums[-1], 0))
        found: Index = np.searchsorted(sums, sought, "right").astype(np.int64)
        return found


def make_weighted(weights: npt.NDArray[np.float64], num_draws: int, seed: int) -> Weighted:
    """Return the order that draws sample i with probability weights[i] / weights.sum(); float64 [samples]."""
    cumulated = SharedArray.create((len(weights),), np.float64, name="penstock-weights")
    np.cumsum(weights, out=cumulated.array)
    digest = hashlib.blake2b(np.ascontiguousarray(weights).data, digest_size=8).hexdigest()
    return Weighted(n=num_draws, seed=seed, cumulated=cumulated, digest=digest)


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
