"""Which samples a rank serves at each step of an epoch, and as which shape."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.loaders.order.bucket_order import Bucketed, BucketSteps, Size
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.epoch_steps import EpochSteps, EqualSteps, Rounds, RoundSteps, count_steps
from penstock.loaders.order.order import InOrder, Order, Shuffled
from penstock.loaders.order.permutation import Index
from penstock.loaders.system.memoize_per_object import keep_results
from penstock.pipelines.errors import LoaderError, count_text
from penstock.pipelines.messages.checked import checked_bool, set_checked
from penstock.pipelines.messages.user_warnings import warn_user

_AT_ONCE = 1024  # samples whose order is computed at once: for fewer, numpy's calls take longer than their work


class Phase(NamedTuple):
    """Say what batches are like from an epoch, or a batch of the run, on.

    Attributes:
        first: the first epoch; or how many batches come before, in a run that serves all epochs from 0 on.
        batch_size: samples per step and rank.
        size: height and width of the images, in pixels.
        by_update: whether `first` counts batches.
    """

    first: int
    batch_size: int
    size: Size
    by_update: bool = False


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Decide which samples a rank serves at each step of an epoch.

    Step s covers the global positions [start + s*G, start + (s+1)*G), where G = batch_size * world_size is the global
    batch; rank r serves its contiguous part. So a step holds the same samples for every world size of equal G. Where
    the order has lanes (see BlockShuffled), the positions of a step are sorted by lane first: by their remainder modulo
    the greatest common divisor of G and the number of lanes, which any G positions hold equally often. So a rank serves
    the same lanes in every step. Where the order has buckets (see Bucketed), each step takes G samples of one bucket,
    or what is left of it; the position counts the samples that were served. With `rounds` or phases by update G changes
    within an epoch: a step takes the next G samples. Raises ValueError for settings that cannot work.

    Attributes:
        n: number of samples in an epoch.
        batch_size: samples per step and rank; with `phases` or `rounds` the most.
        seed: seed of the shuffle.
        rank: this process's number, from 0.
        world_size: number of ranks.
        shuffle: whether positions are permuted, anew in each epoch.
        drop_last: whether samples that do not fill a global batch are left out.
        pad: whether rows without a sample are served, as padding; None for yes if there are several ranks.
        order: which sample lies at which position; unless given, `shuffle` and `seed` decide it.
        phases: batch and image size by epoch or update, the first from 0 on; () where they never change.
        rounds: sequence lengths of batches of patches; None for batches of images.
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
    rounds: Rounds | None = None

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
        kind = "buckets" if self.buckets is not None else "patches" if self.rounds is not None else None
        if kind is not None and self.world_size > 1 and not self.pads and not self.drop_last:
            raise ValueError(f"{kind} on several ranks need padding for equal shapes: leave out pad=False")

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

    @property
    def patch(self) -> int | None:
        """Return the side of patches, in pixels; None if batches hold images."""
        return None if self.rounds is None else self.rounds.patch

    @property
    def by_update(self) -> bool:
        """Whether phases begin at batches of the run."""
        return any(phase.by_update for phase in self.phases)

    @property
    def changes_within(self) -> bool:
        """Whether batch sizes may change within an epoch."""
        return self.rounds is not None or (self.by_update and len({phase.batch_size for phase in self.phases}) > 1)

    def at(self, cursor: Cursor) -> Schedule:
        """Return the schedule with the batch size of the step at `cursor`, for that step."""
        if self.rounds is not None:
            number = self.batch_size if len(self.rounds.lengths) == 1 else self._kind(cursor)[1]
            return self if number == self.batch_size else _in_phase(self, number, ())
        if len(self.phases) < 2:
            return self
        phase = self.phases[self._number_phase(cursor)]
        return _in_phase(self, phase.batch_size, (phase,))

    def _number_phase(self, cursor: Cursor) -> int:
        if self.by_update:
            return bisect_right(_begins(self), cursor) - 1
        return bisect_right([phase.first for phase in self.phases], cursor.epoch) - 1

    def _kind(self, cursor: Cursor) -> tuple[int, int]:
        """Return the sequence length of the step at `cursor` and its samples on each rank."""
        steps = self._steps(cursor.epoch)
        assert self.rounds is not None
        assert isinstance(steps, RoundSteps)
        kind = steps.kind(cursor.position)
        return self.rounds.lengths[kind], self.rounds.batch_sizes[kind]

    def length_at(self, cursor: Cursor) -> int:
        """Return the sequence length of the step at `cursor`, of a schedule with `rounds`."""
        return self._kind(cursor)[0]

    def size_at(self, cursor: Cursor) -> Size | None:
        """Return height and width of the images of the step at `cursor`; None if this schedule does not say it."""
        if self.buckets is not None:
            steps = self._bucket_steps(cursor.epoch)
            return self.buckets.sizes[steps.bucket(steps.number(cursor.position))]
        return self.phases[self._number_phase(cursor)].size if self.phases else None

    def shapes(self) -> tuple[tuple[int, Size], ...]:
        """Return batch size and image size of all batches that may come; () if only the batch size is known."""
        if self.buckets is not None:
            sizes = {phase.batch_size for phase in self.phases} or {self.batch_size}
            return tuple((number, size) for number in sizes for size in self.buckets.sizes)
        return tuple((phase.batch_size, phase.size) for phase in self.phases)

    def _bucket_steps(self, epoch: int) -> BucketSteps:
        assert self.buckets is not None
        return self.buckets.steps(epoch, self.at(Cursor(epoch, 0)).global_batch, drop_last=self.drop_last)

    def _steps(self, epoch: int) -> EpochSteps:
        return _lay_out(self, epoch) if self.buckets is None else self._bucket_steps(epoch)

    @property
    def global_batch(self) -> int:
        """Return the samples of one step over all ranks; where they change, the most: see `at`."""
        return self.batch_size * self.world_size

    @property
    def pads(self) -> bool:
        """Return whether rows that hold no sample are served, as padding."""
        return self.world_size > 1 if self.pad is None else self.pad

    def steps(self, start: int = 0, epoch: int = 0) -> int:
        """Count the steps left in `epoch` after `start` samples; equal on every rank."""
        return self._steps(epoch).left(start)

    def served_steps(self, start: int = 0, epoch: int = 0) -> int:
        """Count those of the steps left that serve something on this rank: without padding, fewer on some ranks."""
        layout = self._steps(epoch)
        steps = layout.left(start)
        if self.pads or not steps or not isinstance(layout, EqualSteps):
            return steps
        last = layout.last(start)
        served = self.at(Cursor(epoch, last)).positions(np.array([last], np.int64)) < self.n
        return steps - (not served.any())

    def share(self, epoch: int) -> int:
        """Return the samples of `epoch` on each rank; without drop_last the most of any rank."""
        served = self._steps(epoch).end if self.drop_last else self.n
        return -(-served // self.world_size)

    def number(self, cursor: Cursor) -> int:
        """Return the number of the step at `cursor` in its epoch."""
        return self._steps(cursor.epoch).number(cursor.position)

    def after(self, cursor: Cursor) -> Cursor:
        """Return the place after the step at `cursor`: the next step, or the next epoch."""
        return self.settle(Cursor(cursor.epoch, self._steps(cursor.epoch).after(cursor.position)))

    def settle(self, cursor: Cursor) -> Cursor:
        """Return `cursor`, or the start of the next epoch if no step is left at it."""
        return cursor if self.steps(cursor.position, cursor.epoch) > 0 else Cursor(cursor.epoch + 1, 0)

    def resume_at(self, cursor: Cursor) -> Cursor:
        """Return where to go on from a state's `cursor`, as `settled`; warns of samples that are left out for it.

        Raises LoaderError E-STATE if no step begins there, in buckets and in patches.
        """
        settled, left = self.settle(cursor), self.n - cursor.position
        if settled != cursor and self.drop_last and left and isinstance(self._steps(cursor.epoch), EqualSteps):
            size = self.at(cursor).global_batch
            warn_user(
                f"the last {left} samples of epoch {cursor.epoch} are left out, as a step takes {size}: "
                "to serve them, resume with the batch_size and ranks of the state, or with drop_last=False",
            )
        return settled

    def saved_sizes(self, size: Size) -> dict[str, Any]:
        """Return what a state says of image sizes that change, as JSON holds it; `size` is the pipeline's."""
        if self.buckets is not None:
            return {"size": [list(each) for each in self.buckets.sizes]}
        if self.rounds is not None:
            about = {"patch": self.rounds.patch, "lengths": list(self.rounds.lengths)}
            return {"size": {**about, "max_ratio": self.rounds.max_ratio}}
        sizes = [[phase.first, list(phase.size)] for phase in self.phases]
        changes: Any = [each for at, each in enumerate(sizes) if not at or each[1] != sizes[at - 1][1]]
        if len(changes) < 2:
            return {"size": list(self.phases[0].size if self.phases else size)}
        return {"size": {"by_update": changes} if self.by_update else changes}

    def identity(self) -> dict[str, Any]:
        """Return what the schedules of all ranks have in common apart from data, order and seed, as JSON holds it."""
        batch_size = list(map(list, self.phases)) if self.phases else self.batch_size
        rounds = None if self.rounds is None else asdict(self.rounds)
        return {"batch_size": batch_size, "drop_last": self.drop_last, "pad": self.pad is not False, "patches": rounds}

    def _saved_batches(self, cursor: Cursor) -> int | list[Any] | None:
        """Return the global batches without which no step would begin at `cursor`; None where one begins anywhere."""
        if self.buckets is not None:
            return self.at(cursor).global_batch
        if self.rounds is not None:
            return list(self.rounds.batches(self.world_size))
        if self.by_update:
            return [[phase.first, phase.batch_size * self.world_size] for phase in self.phases]
        return None

    def saved(self, cursor: Cursor) -> dict[str, Any]:
        """Return what a state needs in addition to `cursor`: the samples of a step over all ranks if they decide it."""
        batches = self._saved_batches(cursor)
        return {} if batches is None else {"global_batch": batches}

    def check_saved(self, state: dict[str, Any], cursor: Cursor) -> None:
        """Raise LoaderError E-STATE if no step of this schedule begins at `cursor` because the state's are others."""
        size, was = self._saved_batches(cursor), state.get("global_batch")
        begun = cursor.position or (self.by_update and cursor.epoch)
        if size is not None and begun and was != size:
            what = "in buckets" if self.buckets is not None else "in patches" if self.rounds else "with sizes by update"
            cause = f"{what} an epoch goes on with its global batch: {was} then, {size} now"
            raise LoaderError("E-STATE", cause, fix="choose batch_size so that batch_size * ranks is as it was")

    def batch(self, epoch: int, position: int) -> Index:
        """Return this rank's sample indices, int64 [batch_size], of the step at global `position`; -1 past the end."""
        schedule = self.at(Cursor(epoch, position))
        steps = 1 if self.rounds is not None else max(1, _AT_ONCE // schedule.batch_size)
        first, within = self._steps(epoch).group(position, steps)
        indices: Index = _batches(schedule, epoch, first, steps)[within].copy()
        return indices

    def draw_keys(self, cursor: Cursor) -> Index | None:
        """Return the numbers, int64 [batch], by which draws are made for the step at `cursor`.

        They are the rows' positions in the epoch; None if draws are made by sample index.
        """
        assert self.order is not None
        if not self.order.repeats:
            return None
        drawn: Index = self.at(cursor).positions(np.array([cursor.position], np.int64))[0]
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

    def next_in_order(self, cursor: Cursor, row: int, most: int) -> Index:
        """Return the samples that the order has behind row `row` of the step at `cursor`, int64 [most or fewer].

        At the end of the epoch they go on at its start. They do not depend on rank, workers or where the run resumed.
        """
        schedule = self.at(cursor)
        if schedule.buckets is None:
            first = schedule.positions(np.array([cursor.position], np.int64))[0, row]
        else:
            rows = np.array([self.rank * schedule.batch_size + row], np.int64)
            first = self._bucket_steps(cursor.epoch).positions(cursor.position, 1, rows)[0, 0]
        assert self.order is not None
        return self.order(cursor.epoch, (first + np.arange(1, min(most + 1, self.n), dtype=np.int64)) % self.n)

    def positions_between(self, start: int, begin: int, end: int) -> Index:
        """Return the positions in [begin, end) that this rank serves, int64 [k], where a step begins at `start`."""
        size = self.global_batch
        steps = np.arange((begin - start) // size, min(-(-(end - start) // size), self.steps(start)), dtype=np.int64)
        positions = self.positions(start + steps * size)
        return positions[(positions >= begin) & (positions < min(end, self.n))]


@keep_results(16)
def _batches(schedule: Schedule, epoch: int, first: int, steps: int) -> Index:
    """Return the sample indices, int64 [steps, batch_size], of several steps from `first` on, as Schedule.batch."""
    if schedule.buckets is None:
        positions = schedule.positions(first + schedule.global_batch * np.arange(steps, dtype=np.int64))
    else:
        rows = schedule.rank * schedule.batch_size + np.arange(schedule.batch_size, dtype=np.int64)
        positions = schedule._bucket_steps(epoch).positions(first, steps, rows)
    inside = positions < schedule.n
    indices = np.where(inside, positions, -1)
    assert schedule.order is not None
    indices[inside] = schedule.order(epoch, positions[inside])
    return indices


@keep_results(64)
def _in_phase(schedule: Schedule, batch_size: int, phases: tuple[Phase, ...]) -> Schedule:
    return replace(schedule, batch_size=batch_size, phases=phases, rounds=None)


@keep_results(64)
def _lay_out(schedule: Schedule, epoch: int) -> EpochSteps:
    """Return the steps of an epoch, of a schedule without buckets."""
    n, drop_last, rounds = schedule.n, schedule.drop_last, schedule.rounds
    if rounds is not None:
        key = (schedule.seed, epoch) if rounds.shuffled else None
        return RoundSteps(n, drop_last, tuple(rounds.batches(schedule.world_size)), key)
    starts = [0]
    if schedule.by_update:
        starts += [begin.position for begin in _begins(schedule) if begin.epoch == epoch and begin.position]
    batches = [schedule.at(Cursor(epoch, start)).global_batch for start in starts]
    return EqualSteps(n, drop_last, tuple(starts), tuple(batches))


@keep_results(16)
def _begins(schedule: Schedule) -> list[Cursor]:
    places = [Cursor(0, 0)]
    for phase, following in pairwise(schedule.phases):
        batch, updates = phase.batch_size * schedule.world_size, following.first - phase.first
        count = partial(count_steps, batch=batch, drop_last=schedule.drop_last)
        epoch, position = places[-1]
        if updates < (left := count(schedule.n - position)):
            places.append(Cursor(epoch, position + updates * batch))
        else:
            epochs, rest = divmod(updates - left, count(schedule.n))
            places.append(Cursor(epoch + 1 + epochs, rest * batch))
    return places
