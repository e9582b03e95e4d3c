"""The order of an epoch: (seed, epoch, position) -> sample index, computed, never stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.loaders.stream.contract import Cursor
from penstock.pipelines.plan.philox import STREAM_ORDER, random_words

SAMPLER = "feistel-1"  # goes into saved states: a new permutation needs a new name
_ROUNDS = 12
_MIN_BITS = 6  # smaller domains leave a measurable bias over the permutations of a handful of samples
_MIX1, _MIX2, _SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(32)

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Permutation:
    """A keyed bijection on [0, n): an alternating Feistel network over ceil(log2 n) bits with cycle walking.

    O(1) memory and, since the domain is below 2n (above 32 samples), under two walks a position on average. Black and
    Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002. Raises ValueError unless 0 < n <= 2**62.
    """

    n: int
    keys: tuple[int, ...]

    @classmethod
    def of_epoch(cls, n: int, seed: int, epoch: int) -> Permutation:
        """The permutation that shuffles epoch `epoch` under `seed`."""
        if not 0 < n <= 1 << 62:
            raise ValueError(f"n lies in [1, 2**62], not {n}")
        words = random_words(seed, epoch, np.zeros(1, np.int64), STREAM_ORDER, 2 * _ROUNDS)[0].tolist()
        return cls(n, tuple(low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)))

    def __call__(self, positions: Index) -> Index:
        """Sample indices at `positions`, both int64 [k] within [0, n)."""
        left_bits = self._bits // 2
        right_bits = self._bits - left_bits
        values = np.asarray(positions, np.int64).astype(np.uint64)
        todo = np.arange(values.size)
        while todo.size:
            values[todo] = self._network(values[todo], left_bits, right_bits)
            todo = todo[values[todo] >= np.uint64(self.n)]
        return values.astype(np.int64)

    @property
    def _bits(self) -> int:
        return max(_MIN_BITS, (self.n - 1).bit_length())

    def _network(self, values: npt.NDArray[np.uint64], left_bits: int, right_bits: int) -> npt.NDArray[np.uint64]:
        shift, low = np.uint64(right_bits), np.uint64((1 << right_bits) - 1)
        left, right = values >> shift, values & low
        for number, key in enumerate(self.keys):
            # The network alternates instead of swapping, which lets the halves differ by one bit.
            if number % 2 == 0:
                left = left ^ (_mix(right, key) >> np.uint64(64 - left_bits))
            else:
                right = right ^ (_mix(left, key) >> np.uint64(64 - right_bits))
        return (left << shift) | right


def _mix(values: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """64 keyed pseudo-random bits of each value (multiply, fold, multiply; the best bits are on top)."""
    mixed = (values + np.uint64(key)) * _MIX1
    mixed ^= mixed >> _SHIFT
    return mixed * _MIX2


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which samples a rank serves at each step of an epoch.

    Step s covers the global positions [start + s*G, start + (s+1)*G), G = batch_size * world_size being the global
    batch; rank r serves its contiguous part. So a step holds the same samples for every world size of equal G.
    """

    n: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("the data set is empty")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank lies in [0, world_size), not {self.rank} of {self.world_size}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed lies in [0, 2**64), not {self.seed}")
        if self.drop_last and self.global_batch > self.n:
            raise ValueError(
                f"a global batch of {self.global_batch} never fills from {self.n} samples: "
                "lower batch_size, or pass drop_last=False"
            )

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.batch_size * self.world_size

    def steps(self, start: int = 0) -> int:
        """Steps left in an epoch of which `start` samples are already served: equal on every rank."""
        left = self.n - start
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def after(self, cursor: Cursor) -> Cursor:
        """Where the stream goes on after the step at `cursor`: the next step, or the next epoch."""
        return self.settled(Cursor(cursor.epoch, cursor.position + self.global_batch))

    def settled(self, cursor: Cursor) -> Cursor:
        """`cursor`, or the start of the next epoch if no step is left at it."""
        return cursor if self.steps(cursor.position) > 0 else Cursor(cursor.epoch + 1, 0)

    def batch(self, epoch: int, position: int) -> Index:
        """This rank's sample indices, int64 [batch_size], of the step at global `position`; -1 past the epoch's end."""
        positions = position + self.rank * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        inside = positions < self.n
        if self.shuffle:
            indices = np.full(self.batch_size, -1, np.int64)
            indices[inside] = Permutation.of_epoch(self.n, self.seed, epoch)(positions[inside])
            return indices
        return np.where(inside, positions, -1)
