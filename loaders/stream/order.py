"""Which samples a rank serves at each step of an epoch: an order that is computed, never stored."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from penstock.loaders.stream.engine_contract import Cursor
from penstock.pipelines.checked import checked_bool, set_checked
from penstock.pipelines.plan.philox import STREAM_ORDER, random_words

SAMPLER = "feistel-1"  # goes into saved states: a new permutation needs a new name
_ROUNDS = 12
_MIN_BITS = 6  # smaller domains leave a measurable bias over the permutations of a handful of samples
_AT_ONCE = 1024  # samples whose order is computed at once: for fewer, numpy's calls take longer than their work
_MIX1, _MIX2, _SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(32)

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Permutation:
    """Map positions to sample indices by a keyed bijection on [0, n).

    It is an alternating Feistel network over ceil(log2 n) bits with cycle walking: Black and Rogaway, "Ciphers with
    arbitrary finite domains", CT-RSA 2002. It takes O(1) memory and, since the domain is below 2n (above 32 samples),
    fewer than two walks per position on average.

    Attributes:
        n: number of samples.
        keys: one 64-bit key for each round.
    """

    n: int
    keys: tuple[int, ...]

    @classmethod
    def of_epoch(cls, n: int, seed: int, epoch: int) -> Permutation:
        """Return the permutation that shuffles `epoch` under `seed`. Raises ValueError unless 0 < n <= 2**62."""
        if not 0 < n <= 1 << 62:
            raise ValueError(f"n must lie in [1, 2**62], got {n}")
        words = random_words(seed, epoch, np.zeros(1, np.int64), STREAM_ORDER, 2 * _ROUNDS)[0].tolist()
        return cls(n, tuple(low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)))

    def __call__(self, positions: Index) -> Index:
        """Return the sample indices at `positions`, both int64 [k] within [0, n)."""
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
    """Hash each value to 64 keyed pseudo-random bits (multiply, fold, multiply; the best bits are on top)."""
    mixed = (values + np.uint64(key)) * _MIX1
    mixed ^= mixed >> _SHIFT
    return mixed * _MIX2


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Decide which samples a rank serves at each step of an epoch.

    Step s covers the global positions [start + s*G, start + (s+1)*G), where G = batch_size * world_size is the global
    batch; rank r serves its contiguous part. So a step holds the same samples for every world size of equal G. Raises
    ValueError for settings that cannot work.

    Attributes:
        n: number of samples in the data set.
        batch_size: samples a step and rank.
        seed: seed of the shuffle.
        rank: this process's number, from 0.
        world_size: number of ranks.
        shuffle: whether positions are permuted, anew in each epoch.
        drop_last: whether samples that do not fill a global batch are left out.
        pad: whether rows without a sample are served, as padding; None for yes if there are several ranks.
    """

    n: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True
    pad: bool | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("the data set is empty")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must lie in [0, world_size), got {self.rank} of {self.world_size}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must lie in [0, 2**64), got {self.seed}")
        if self.pad is not None:
            set_checked(self, pad=checked_bool("pad", self.pad))
        if self.drop_last and self.global_batch > self.n:
            raise ValueError(
                f"a global batch of {self.global_batch} never fills from {self.n} samples: "
                "lower batch_size, or pass drop_last=False"
            )

    @property
    def global_batch(self) -> int:
        """Return the samples of one step over all ranks."""
        return self.batch_size * self.world_size

    @property
    def pads(self) -> bool:
        """Return whether rows that hold no sample are served, as padding."""
        return self.world_size > 1 if self.pad is None else self.pad

    def steps(self, start: int = 0) -> int:
        """Count the steps left in an epoch after `start` samples; equal on every rank."""
        left = self.n - start
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def served_steps(self, start: int = 0) -> int:
        """Count those of the steps left that serve something on this rank: without padding, fewer on some ranks."""
        own = self.n - start - self.rank * self.batch_size
        return self.steps(start) if self.pads else min(self.steps(start), max(0, -(-own // self.global_batch)))

    def after(self, cursor: Cursor) -> Cursor:
        """Return the place after the step at `cursor`: the next step, or the next epoch."""
        return self.settle(Cursor(cursor.epoch, cursor.position + self.global_batch))

    def settle(self, cursor: Cursor) -> Cursor:
        """Return `cursor`, or the start of the next epoch if no step is left at it."""
        return cursor if self.steps(cursor.position) > 0 else Cursor(cursor.epoch + 1, 0)

    def resume_at(self, cursor: Cursor) -> Cursor:
        """Return where to go on from a state's `cursor`, as `settled`; warns of samples that are left out for it."""
        settled, left = self.settle(cursor), self.n - cursor.position
        if settled != cursor and self.drop_last and left:
            warnings.warn(
                f"the last {left} samples of epoch {cursor.epoch} are left out, as a step takes {self.global_batch}: "
                "to serve them, resume with the batch_size and ranks of the state, or with drop_last=False",
                stacklevel=4,
            )
        return settled

    def batch(self, epoch: int, position: int) -> Index:
        """Return this rank's sample indices, int64 [batch_size], of the step at global `position`; -1 past the end."""
        steps = max(1, _AT_ONCE // self.batch_size)
        step = position // self.global_batch % steps
        indices: Index = _batches(self, epoch, position - step * self.global_batch, steps)[step].copy()
        return indices


@lru_cache(maxsize=16)
def _batches(schedule: Schedule, epoch: int, position: int, steps: int) -> Index:
    """Return the sample indices, int64 [steps, batch_size], of the steps from `position` on, as Schedule.batch."""
    firsts = position + schedule.rank * schedule.batch_size + schedule.global_batch * np.arange(steps, dtype=np.int64)
    positions = firsts[:, None] + np.arange(schedule.batch_size, dtype=np.int64)
    inside = positions < schedule.n
    indices = np.where(inside, positions, -1)
    if schedule.shuffle:
        indices[inside] = Permutation.of_epoch(schedule.n, schedule.seed, epoch)(positions[inside])
    return indices
