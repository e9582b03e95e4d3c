"""Which samples a rank serves at each step of an epoch, and as which shape."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.stream.bucket_order import Bucketed, BucketSteps, Size
from penstock.loaders.stream.engine_contract import Cursor
from penstock.loaders.stream.order import InOrder, Order, Shuffled
from penstock.loaders.stream.permutation import Index
from penstock.pipelines.checked import checked_bool, set_checked
from penstock.pipelines.errors import LoaderError, count_text

_AT_ONCE = 1024  # samples whose order is computed at once: for fewer, numpy's calls take longer than their work


class Phase(NamedTuple):
    """Say what batches are like from an epoch on.

    Attributes:
        epoch: the first epoch.
        batch_size: samples a step and rank.
        size: height and width of the images, in pixels.
    """

    epoch: int
    batch_size: int
    size: Size


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Decide which samples a rank serves at each step of an epoch.

    Step s covers the global positions [start + s*G, start + (s+1)*G), where G = batch_size * world_size is the global
    batch; rank r serves its contiguous part. So a step holds the same samples for every world size of equal G. Where
    the order has lanes (see BlockShuffled), the positions of a step are sorted by lane first: by their remainder modulo
    the greatest common divisor of G and the number of lanes, which any G positions hold equally often. So a rank serves
    the same lanes in every step. Where the order has buckets (see Bucketed), each step takes G samples of one bucket,
    or what is left of it; the position counts the samples that were served. Raises ValueError for settings that cannot
    work.

    Attributes:
        n: number of samples in an epoch.
        batch_size: samples a step and rank; with `phases` the most.
        seed: seed of the shuffle.
        rank: this process's number, from 0.
        world_size: number of ranks.
        shuffle: whether positions are permuted, anew in each epoch.
        drop_last: whether samples that do not fill a global batch are left out.
        pad: whether rows without a sample are served, as padding; None for yes if there are several ranks.
        order: which sample lies at which position; unless given, `shuffle` and `seed` decide it.
        phases: batch and image size by epoch, the first from epoch 0 on; () where they never change.
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
    phases: tuple[Phase, ...] = ()

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
        if self.drop_last:
            self._refuse_never_full()
        if self.buckets is not None and self.world_size > 1 and not self.pads and not self.drop_last:
            raise ValueError("buckets on several ranks need padding for equal shapes: leave out pad=False")

    def _refuse_never_full(self) -> None:
        held = {f"{self.n} samples": self.n}
        if self.buckets is not None:
            counts = np.diff(self.buckets.starts).tolist()
            held = {
                f"the {count_text(count, 'sample')} of bucket {size}": count
                for size, count in zip(self.buckets.sizes, counts, strict=True)
                if count
            }
        for name, count in held.items():
            if self.global_batch > count:
                raise ValueError(
                    f"a global batch of {self.global_batch} never fills from {name}: "
                    f"lower batch_size, {'leave the bucket out, ' * (self.buckets is not None)}or pass drop_last=False"
                )

    @property
    def buckets(self) -> Bucketed | None:
        """Return the order if it has buckets."""
        return self.order if isinstance(self.order, Bucketed) else None

    def at(self, epoch: int) -> Schedule:
        """Return the schedule with the batch size of `epoch`, for that epoch."""
        if len(self.phases) < 2:
            return self
        return _in_phase(self, next(phase for phase in reversed(self.phases) if phase.epoch <= epoch))

    def size_at(self, cursor: Cursor) -> Size | None:
        """Return height and width of the images of the step at `cursor`; None if this schedule does not say it."""
        if self.buckets is not None:
            steps = self._bucket_steps(cursor.epoch)
            return self.buckets.sizes[steps.bucket(steps.number(cursor.position))]
        return self.at(cursor.epoch).phases[0].size if self.phases else None

    def shapes(self) -> tuple[tuple[int, Size], ...]:
        """Return batch size and image size of all batches that may come; () if only the batch size is known."""
        if self.buckets is not None:
            sizes = {phase.batch_size for phase in self.phases} or {self.batch_size}
            return tuple((number, size) for number in sizes for size in self.buckets.sizes)
        return tuple((phase.batch_size, phase.size) for phase in self.phases)

    def _bucket_steps(self, epoch: int) -> BucketSteps:
        assert self.buckets is not None
        return self.buckets.steps(epoch, self.at(epoch).global_batch, drop_last=self.drop_last)

    @property
    def global_batch(self) -> int:
        """Return the samples of one step over all ranks; where they change by epoch, the most: see `at`."""
        return self.batch_size * self.world_size

    @property
    def pads(self) -> bool:
        """Return whether rows that hold no sample are served, as padding."""
        return self.world_size > 1 if self.pad is None else self.pad

    def steps(self, start: int = 0, epoch: int = 0) -> int:
        """Count the steps left in `epoch` after `start` samples; equal on every rank."""
        if self.buckets is not None:
            steps = self._bucket_steps(epoch)
            return len(steps) - steps.number(start)
        left, size = self.n - start, self.at(epoch).global_batch
        return left // size if self.drop_last else -(-left // size)

    def served_steps(self, start: int = 0, epoch: int = 0) -> int:
        """Count those of the steps left that serve something on this rank: without padding, fewer on some ranks."""
        steps = self.steps(start, epoch)
        if self.pads or not steps or self.buckets is not None:
            return steps
        own = self.at(epoch)
        last = own.positions(np.array([start + (steps - 1) * own.global_batch], np.int64))
        return steps - (not (last < self.n).any())

    def number(self, cursor: Cursor) -> int:
        """Return the number of the step at `cursor` in its epoch."""
        if self.buckets is not None:
            return self._bucket_steps(cursor.epoch).number(cursor.position)
        return cursor.position // self.at(cursor.epoch).global_batch

    def after(self, cursor: Cursor) -> Cursor:
        """Return the place after the step at `cursor`: the next step, or the next epoch."""
        epoch, position = cursor
        if self.buckets is not None:
            steps = self._bucket_steps(epoch)
            return self.settle(Cursor(epoch, steps.place(steps.number(position) + 1)))
        return self.settle(Cursor(epoch, position + self.at(epoch).global_batch))

    def settle(self, cursor: Cursor) -> Cursor:
        """Return `cursor`, or the start of the next epoch if no step is left at it."""
        return cursor if self.steps(cursor.position, cursor.epoch) > 0 else Cursor(cursor.epoch + 1, 0)

    def resume_at(self, cursor: Cursor) -> Cursor:
        """Return where to go on from a state's `cursor`, as `settled`; warns of samples that are left out for it.

        Raises LoaderError E-STATE if no step begins there, in buckets.
        """
        settled, left = self.settle(cursor), self.n - cursor.position
        if settled != cursor and self.drop_last and left and self.buckets is None:
            size = self.at(cursor.epoch).global_batch
            warnings.warn(
                f"the last {left} samples of epoch {cursor.epoch} are left out, as a step takes {size}: "
                "to serve them, resume with the batch_size and ranks of the state, or with drop_last=False",
                stacklevel=4,
            )
        return settled

    def saved_sizes(self, size: Size) -> dict[str, Any]:
        """Return what a state says of image sizes that change, as JSON holds it; `size` is the pipeline's."""
        if self.buckets is not None:
            return {"size": [list(each) for each in self.buckets.sizes]}
        sizes = [[phase.epoch, list(phase.size)] for phase in self.phases]
        changes = [each for at, each in enumerate(sizes) if not at or each[1] != sizes[at - 1][1]]
        return {"size": changes if len(changes) > 1 else list(self.phases[0].size if self.phases else size)}

    def identity(self) -> dict[str, Any]:
        """Return what the schedules of all ranks have in common apart from data, order and seed, as JSON holds it."""
        batch_size = list(map(list, self.phases)) if self.phases else self.batch_size
        return {"batch_size": batch_size, "drop_last": self.drop_last, "pad": self.pad is not False}

    def saved(self, cursor: Cursor) -> dict[str, Any]:
        """Return what a state needs in addition to `cursor`: in buckets, the samples of a step over all ranks."""
        return {} if self.buckets is None else {"global_batch": self.at(cursor.epoch).global_batch}

    def check_saved(self, state: dict[str, Any], cursor: Cursor) -> None:
        """Raise LoaderError E-STATE if the state's steps of the epoch in `cursor` are others, which buckets cannot."""
        size = self.at(cursor.epoch).global_batch
        if self.buckets is not None and cursor.position and state.get("global_batch") != size:
            cause = f"in buckets an epoch goes on with its global batch: {state.get('global_batch')} then, {size} now"
            raise LoaderError("E-STATE", cause, fix="choose batch_size so that batch_size * ranks is as it was")

    def batch(self, epoch: int, position: int) -> Index:
        """Return this rank's sample indices, int64 [batch_size], of the step at global `position`; -1 past the end."""
        schedule, number = self.at(epoch), self.number(Cursor(epoch, position))
        steps = max(1, _AT_ONCE // schedule.batch_size)
        within = number % steps
        first = number - within if self.buckets is not None else position - schedule.global_batch * within
        indices: Index = _batches(schedule, epoch, first, steps)[within].copy()
        return indices

    def draw_keys(self, cursor: Cursor) -> Index | None:
        """Return the numbers, int64 [batch], by which draws are made for the step at `cursor`.

        They are the rows' positions in the epoch; None if draws are made by sample index.
        """
        assert self.order is not None
        if not self.order.repeats:
            return None
        drawn: Index = self.at(cursor.epoch).positions(np.array([cursor.position], np.int64))[0]
        return drawn

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
def _batches(schedule: Schedule, epoch: int, first: int, steps: int) -> Index:
    """Return the sample indices, int64 [steps, batch_size], of several steps, as Schedule.batch.

    first: the position of the first of them; in buckets its number.
    """
    following = np.arange(steps, dtype=np.int64)
    if schedule.buckets is None:
        positions = schedule.positions(first + schedule.global_batch * following)
    else:
        rows = schedule.rank * schedule.batch_size + np.arange(schedule.batch_size, dtype=np.int64)
        positions = schedule._bucket_steps(epoch).positions(first + following, rows)
    inside = positions < schedule.n
    indices = np.where(inside, positions, -1)
    assert schedule.order is not None
    indices[inside] = schedule.order(epoch, positions[inside])
    return indices


@lru_cache(maxsize=64)
def _in_phase(schedule: Schedule, phase: Phase) -> Schedule:
    return replace(schedule, batch_size=phase.batch_size, phases=(phase,))
