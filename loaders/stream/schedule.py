"""Which samples a rank serves at each step of an epoch."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from penstock.loaders.stream.engine_contract import Cursor
from penstock.loaders.stream.order import InOrder, Order, Shuffled
from penstock.loaders.stream.permutation import Index
from penstock.pipelines.checked import checked_bool, set_checked

_AT_ONCE = 1024  # samples whose order is computed at once: for fewer, numpy's calls take longer than their work


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Decide which samples a rank serves at each step of an epoch.

    Step s covers the global positions [start + s*G, start + (s+1)*G), where G = batch_size * world_size is the global
    batch; rank r serves its contiguous part. So a step holds the same samples for every world size of equal G. Where
    the order has lanes (see BlockShuffled), the positions of a step are sorted by lane first: by their remainder modulo
    the greatest common divisor of G and the number of lanes, which any G positions hold equally often. So a rank serves
    the same lanes in every step. Raises ValueError for settings that cannot work.

    Attributes:
        n: number of samples in an epoch.
        batch_size: samples a step and rank.
        seed: seed of the shuffle.
        rank: this process's number, from 0.
        world_size: number of ranks.
        shuffle: whether positions are permuted, anew in each epoch.
        drop_last: whether samples that do not fill a global batch are left out.
        pad: whether rows without a sample are served, as padding; None for yes if there are several ranks.
        order: which sample lies at which position; unless given, `shuffle` and `seed` decide it.
    """

    n: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    shuffle: bool = True
    drop_last: bool = True
    pad: bool | None = None
    order: Order | None = None

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
        if self.order is None:
            set_checked(self, order=Shuffled(self.n, self.seed) if self.shuffle else InOrder(self.n))
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
        steps = self.steps(start)
        if self.pads or not steps:
            return steps
        last = self.positions(np.array([start + (steps - 1) * self.global_batch], np.int64))
        return steps - (not (last < self.n).any())

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

    def draw_keys(self, position: int) -> Index | None:
        """Return the numbers, int64 [batch], by which draws are made for the step at global `position`.

        They are the rows' positions in the epoch; None if draws are made by sample index.
        """
        assert self.order is not None
        return self.positions(np.array([position], np.int64))[0] if self.order.repeats else None

    def positions(self, starts: Index) -> Index:
        """Return the positions that this rank serves of the steps at `starts` (int64 [steps]): int64 [steps, batch].

        Those past the end of the epoch, which hold no sample, come last.
        """
        modulus = math.gcd(getattr(self.order, "lanes", 1), self.global_batch)
        rows = self.rank * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        remainders, turns = np.divmod(rows, self.global_batch // modulus)
        begins = starts[:, None]
        positions: Index = begins + (remainders - begins) % modulus + turns * modulus
        outside = positions >= self.n
        if modulus > 1 and outside.any():
            positions = np.take_along_axis(positions, np.argsort(outside, axis=1, kind="stable"), axis=1)
        return positions

    def positions_between(self, start: int, begin: int, end: int) -> Index:
        """Return the positions in [begin, end) that this rank serves, int64 [k], where a step begins at `start`."""
        size = self.global_batch
        steps = np.arange((begin - start) // size, min(-(-(end - start) // size), self.steps(start)), dtype=np.int64)
        positions = self.positions(start + steps * size)
        return positions[(positions >= begin) & (positions < min(end, self.n))]


@lru_cache(maxsize=16)
def _batches(schedule: Schedule, epoch: int, position: int, steps: int) -> Index:
    """Return the sample indices, int64 [steps, batch_size], of the steps from `position` on, as Schedule.batch."""
    positions = schedule.positions(position + schedule.global_batch * np.arange(steps, dtype=np.int64))
    inside = positions < schedule.n
    indices = np.where(inside, positions, -1)
    assert schedule.order is not None
    indices[inside] = schedule.order(epoch, positions[inside])
    return indices
