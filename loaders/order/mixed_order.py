"""Mixes several sources by shares: exact counts in each epoch, every source used evenly over the epochs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from penstock.loaders.order.permutation import Index, Permutation

Counts = npt.NDArray[np.int64]
_FIRST_SOURCE = 1  # number of the first source's permutation; 0 is that of the epoch


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Serve, in each epoch, a fixed number of samples of each source, in a shuffled order.

    A source's samples are shuffled once per pass over it. An epoch goes on in the pass where the last one stopped, so
    no sample comes twice before all others of its source came once.

    Attributes:
        n: samples in an epoch.
        seed: seed of the shuffle.
        sizes: samples of each source; their indices follow each other.
        shares: of each epoch the share of each source, not all zero; the last goes for all later epochs.
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

    def counts(self, epoch: int) -> Counts:
        """Return the samples of each source in `epoch`, int64 [sources]."""
        return _share_out(self.n, self.shares[min(epoch, len(self.shares) - 1)])

    def _used(self, epoch: int) -> Counts:
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
def _share_out(n: int, shares: tuple[float, ...]) -> Counts:
    """Split `n` in proportion to `shares`: the largest remainders get what rounding down leaves."""
    exact = np.array(shares, np.float64) * (n / sum(shares))
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: n - int(counts.sum())]] += 1
    return counts
