"""The order of an epoch: the sample at each position, a pure function of (seed, epoch, position)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.loaders.order.permutation import Index, Permutation
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.plan.philox import STREAM_DRAW, random_words

_FIRST_SOURCE = 1  # number of the permutation of a mixture's first source; 0 is the epoch's permutation
SAMPLER = "feistel-1"  # stored in states: a new permutation needs a new name


class Order(Protocol):
    """The sample at each position of an epoch; equal on every rank, in memory that does not grow with n.

    An order with `lanes` serves position p in lane p % lanes, and Schedule gives whole lanes to ranks. Its
    `span_at(epoch, position)` returns about `mixed` positions with neighbouring samples in the source, so that they can
    be fetched together. An order with `copies` serves each sample at so many consecutive positions, and Schedule gives
    them to different ranks.

    Attributes:
        n: positions per epoch.
        name: identifies the order in saved states, with all of its settings except the seed.
        repeats: whether a sample may occur several times per epoch. Crops and augmentations are then drawn by
            position, so that each occurrence has its own.
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
    """Shuffle all samples, differently in each epoch."""

    n: int
    seed: int
    name: str = SAMPLER
    repeats: bool = False

    def __call__(self, epoch: int, positions: Index) -> Index:
        return Permutation.of_epoch(self.n, self.seed, epoch)(positions)


@dataclass(frozen=True, kw_only=True, eq=False)
class Weighted:
    """Draw the sample at each position by inverting the cumulative weights.

    Attributes:
        n: draws per epoch.
        seed: seed of the draws.
        cumulated: float64 [samples], cumulative sums of the weights; 8 bytes per sample, shared by all workers.
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
        # A product that is rounded up to the total must not select a sample after the last one with a weight.
        sought = np.minimum(uniform * sums[-1], np.nextafter(sums[-1], 0))
        found: Index = np.searchsorted(sums, sought, "right").astype(np.int64)
        return found


def make_weighted(weights: npt.NDArray[np.float64], num_draws: int, seed: int) -> Weighted:
    """Return the order that draws sample i with probability weights[i] / weights.sum(); float64 [samples]."""
    cumulated = SharedArray.create((len(weights),), np.float64, name="penstock-weights")
    np.cumsum(weights, out=cumulated.array)
    digest = hashlib.blake2b(np.ascontiguousarray(weights).data, digest_size=8).hexdigest()
    return Weighted(n=num_draws, seed=seed, cumulated=cumulated, digest=digest)


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Serve, in each epoch, a fixed number of samples of each source, in a shuffled order.

    A source's samples are shuffled once per pass over it. An epoch continues the pass where the previous epoch stopped,
    so no sample repeats before all others of its source were served.

    Attributes:
        n: samples per epoch.
        seed: seed of the shuffle.
        sizes: samples of each source; the indices of the sources are consecutive.
        shares: for each epoch, the share of each source, not all zero; the last entry applies to all later epochs.
    """

    n: int
    seed: int
    sizes: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]
    repeats: bool = True

    @property
    def name(self) -> str:
        settings = json.dumps([self.n, self.sizes, self.shares]).encode("ascii")
        return f"mixed-1 {hashlib.blake2b(settings, digest_size=8).hexdigest()}"

    def counts(self, epoch: int) -> Index:
        """Return the samples of each source in `epoch`, int64 [sources]."""
        return _share_out(self.n, self.shares[min(epoch, len(self.shares) - 1)])

    def _used(self, epoch: int) -> Index:
        """Return the samples of each source in all epochs before `epoch`."""
        named = min(epoch, len(self.shares))
        used = sum((self.counts(earlier) for earlier in range(named)), np.zeros(len(self.sizes), np.int64))
        return used + (epoch - named) * self.counts(epoch)

    def __call__(self, epoch: int, positions: Index) -> Index:
        places = Permutation.of_epoch(self.n, self.seed, epoch)(positions)
        ends = np.cumsum(self.counts(epoch))
        sources = np.searchsorted(ends, places, "right")
        starts = list(accumulate(self.sizes, initial=0))
        indices = np.empty(len(places), np.int64)
        used = self._used(epoch)
        for source in np.unique(sources).tolist():
            here = np.flatnonzero(sources == source)
            drawn = places[here] - (ends[source - 1] if source else 0) + used[source]
            passes, within = np.divmod(drawn, self.sizes[source])
            for number in np.unique(passes).tolist():
                some = passes == number
                shuffled = Permutation.of_epoch(self.sizes[source], self.seed, number, _FIRST_SOURCE + source)
                indices[here[some]] = starts[source] + shuffled(within[some])
        return indices


@lru_cache(maxsize=64)
def _share_out(n: int, shares: tuple[float, ...]) -> Index:
    """Split `n` in proportion to `shares`; the largest remainders are rounded up."""
    exact = np.array(shares, np.float64) * (n / sum(shares))
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: n - int(counts.sum())]] += 1
    return counts
