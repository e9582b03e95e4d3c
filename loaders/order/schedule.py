"""Which samples a rank serves at each step of an epoch, and in which shape."""

from __future__ import annotations

import functools
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from penstock.loaders.order.bucket_order import Bucketed
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.order.epoch_steps import EpochSteps, EqualSteps, Rounds, RoundSteps, Shape, Size, count_steps
from penstock.loaders.order.order import InOrder, Order, Shuffled
from penstock.loaders.order.own_order import EpochIndices, OwnOrder
from penstock.loaders.order.permutation import Index
from penstock.loaders.order.virtual_epochs import VirtualEpochs
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_bool, set_checked
from penstock.pipelines.messages.user_warnings import warn_user

Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Result = TypeVar("Result")
_NOTHING = object()
Function = Callable[Concatenate[Owner, Given], Result]


def keep_results(most: int) -> Callable[[Function[Owner, Given, Result]], Function[Owner, Given, Result]]:
    """Return a decorator that caches the latest results, at most `most` for each first argument (hashable).

    Unlike functools.lru_cache it does not keep the first argument alive. Otherwise the order of a deleted loader would
    keep its shared memory and descriptors. A result must not refer to the first argument either.
    """

    def decorate(function: Function[Owner, Given, Result]) -> Function[Owner, Given, Result]:
        kept: weakref.WeakKeyDictionary[Owner, dict[object, Any]] = weakref.WeakKeyDictionary()

        @functools.wraps(function)
        def keeping(owner: Owner, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
            key = (arguments, *named.items())
            own = kept.get(owner)
            if own is None:
                own = kept.setdefault(owner, {})
            found = own.get(key, _NOTHING)
            if found is _NOTHING:
                found = function(owner, *arguments, **named)
                if len(own) >= most:
                    own.clear()  # a run that continues from here needs the next ones only
                own[key] = found
            return found  # type: ignore[no-any-return]

        return keeping

    return decorate


_AT_ONCE = 1024  # samples to order at once: with fewer, the overhead of numpy's calls dominates


class Phase(NamedTuple):
    """Batch and image size from an epoch, or a batch of the run, on.

    Attributes:
        first: the first epoch; or the number of batches before it, in a run that serves all epochs from 0 on.
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
    """The samples that a rank serves at each step of an epoch.

    order     3 7 0 4  1 6 2 5   the sample at each position, from seed and epoch: 8 samples
    ranks     3 7      1 6       rank 0: batch_size 2 of a global batch of 4
                  0 4      2 5   rank 1
    steps    |3 7 0 4|1 6 2 5|   EqualSteps, RoundSteps or BucketSteps: where each begins and its size
    cursor           ^           Cursor(epoch, 4): 4 samples were served on all ranks together
    indices                2 5   batch(epoch, 4) on rank 1

    A step takes the next G positions, where G = batch_size * world_size is the global batch; rank r serves its
    contiguous part. So with equal G, a step contains the same samples for every world size. With `rounds` or phases by
    update, G changes within an epoch. If the order has lanes (see BlockShuffled), the positions of a step are first
    sorted by lane: by their remainder modulo the greatest common divisor of G and the number of lanes. Any G positions
    contain each remainder equally often, so a rank serves the same lanes in every step. If the order has buckets (see
    Bucketed), each step takes G samples of one bucket, or the rest of it. Raises ValueError for settings that cannot
    work.

    Attributes:
        n: number of samples per epoch.
        batch_size: samples per step and rank; with `phases` or `rounds` the maximum.
        seed: seed of the shuffle.
        rank: this process's number, from 0.
        world_size: number of ranks.
        shuffle: whether positions are permuted, differently in each epoch.
        drop_last: whether samples that do not fill a global batch are left out.
        pad: whether rows without a sample are served as padding; None for padding on several ranks.
        order: the sample at each position; by default from `shuffle` and `seed`.
        phases: batch and image size by epoch or update, the first from 0 on; () if they never change.
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
            raise ValueError(f"rank must be in [0, world_size), got {self.rank} of {self.world_size}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be in [0, 2**64), got {self.seed}")
        if self.pad is not None:
            set_checked(self, pad=checked_bool("pad", self.pad))
        if self.order is None:
            set_checked(self, order=Shuffled(self.n, self.seed) if self.shuffle else InOrder(self.n))
        steps = self._steps(0)
        if self.drop_last:
            steps.refuse_never_full(self.global_batch)
        if steps.kind and self.world_size > 1 and not self.pads and not self.drop_last:
            raise ValueError(f"{steps.kind} on several ranks need padding for equal shapes: do not pass pad=False")

    @property
    def patch(self) -> int | None:
        """Return the side of patches, in pixels; None for batches of images."""
        return None if self.rounds is None else self.rounds.patch

    @property
    def by_update(self) -> bool:
        """Whether phases begin at batches of the run."""
        return any(phase.by_update for phase in self.phases)

    @property
    def changes_within(self) -> bool:
        """Whether batch sizes may change within an epoch."""
        return self.rounds is not None or (self.by_update and len({phase.batch_size for phase in self.phases}) > 1)

    @keep_results(16)
    def _begins(self) -> list[Cursor]:
        """Return where each phase begins; Cursor(0, 0) without phases."""
        if not self.by_update:
            return [Cursor(phase.first, 0) for phase in self.phases] or [Cursor(0, 0)]
        places = [Cursor(0, 0)]
        for phase, following in pairwise(self.phases):
            batch, updates = phase.batch_size * self.world_size, following.first - phase.first
            count = partial(count_steps, batch=batch, drop_last=self.drop_last)
            epoch, position = places[-1]
            if updates < (left := count(self.n - position)):
                places.append(Cursor(epoch, position + updates * batch))
            else:
                epochs, rest = divmod(updates - left, max(1, count(self.n)))  # 0 will be refused
                places.append(Cursor(epoch + 1 + epochs, rest * batch))
        return places

    @keep_results(64)
    def _steps(self, epoch: int) -> EpochSteps:
        """Return the steps of an epoch."""
        order, rounds, world_size = self.order, self.rounds, self.world_size
        about: Any = {name: getattr(self, name) for name in ("n", "drop_last", "rank", "world_size")}
        about |= {name: getattr(order, name, 1) for name in ("lanes", "copies")}
        about["shift"] = order.shift(epoch) if isinstance(order, VirtualEpochs) else 0
        if rounds is not None:
            batches = tuple(batch_size * world_size for batch_size in rounds.batch_sizes)
            return RoundSteps(**about, rounds=rounds, batches=batches, key=(self.seed, epoch))
        begins = self._begins()
        first, end = (bisect_right(begins, Cursor(epoch, place)) for place in (0, self.n))
        starts = (0, *(begin.position for begin in begins[first:end]))
        phases = self.phases[first - 1 : end]
        sizes = tuple(phase.size for phase in phases) or (None,)
        batches = tuple(phase.batch_size * world_size for phase in phases) or (self.global_batch,)
        if isinstance(order, Bucketed):
            return order.steps(epoch, batches[0], **about)
        return EqualSteps(**about, starts=starts, batches=batches, sizes=sizes)

    def batch_size_at(self, cursor: Cursor) -> int:
        """Return the number of samples per rank of a full step at `cursor`."""
        return self._steps(cursor.epoch).batch(cursor.position) // self.world_size

    def shape_at(self, cursor: Cursor) -> Shape:
        """Return the shape of the images of the step at `cursor`."""
        return self._steps(cursor.epoch).shape(cursor.position)

    def shapes(self) -> tuple[tuple[int, Shape], ...]:
        """Return batch size and shape of all possible batches; () if only the batch size is known."""
        shapes = (shape for epoch, _ in self._begins() for shape in self._steps(epoch).shapes())
        return tuple(dict.fromkeys((batch // self.world_size, shape) for batch, shape in shapes if shape is not None))

    @property
    def global_batch(self) -> int:
        """Return the number of samples of one step on all ranks; the maximum if it changes."""
        return self.batch_size * self.world_size

    @property
    def pads(self) -> bool:
        """Return whether rows without a sample are served as padding."""
        return self.world_size > 1 if self.pad is None else self.pad

    def steps(self, start: int = 0, epoch: int = 0) -> int:
        """Return the number of steps left in `epoch` after `start` samples; equal on every rank."""
        return self._steps(epoch).left(start)

    def served_steps(self, start: int = 0, epoch: int = 0) -> int:
        """Return the number of steps left that serve samples on this rank: fewer on some ranks without padding."""
        steps = self._steps(epoch)
        return steps.left(start) if self.pads else steps.served(start)

    def share(self, epoch: int) -> int:
        """Return the number of samples of `epoch` per rank; without drop_last the maximum over the ranks."""
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
        """Return where to continue from a state's `cursor`, as `settle` does; warn about samples that are left out.

        With buckets and patches, raises LoaderError E-STATE if no step begins there.
        """
        settled, left, steps = self.settle(cursor), self.n - cursor.position, self._steps(cursor.epoch)
        if settled != cursor and self.drop_last and left and not steps.kind:
            warn_user(
                f"the last {left} samples of epoch {cursor.epoch} are left out, because a step takes "
                f"{steps.batch(cursor.position)}: "
                "to serve them, resume with the batch_size and ranks of the state, or with drop_last=False",
            )
        return settled

    def warn_of_left_out(self) -> None:
        """Warn if steps leave out samples of each virtual epoch, which the next epochs do not serve either."""
        if isinstance(self.order, VirtualEpochs) and self.drop_last and (left := self.n - self._steps(0).end):
            warn_user(
                f"the last {left} of epoch_samples={self.n} do not fill a batch and are left out of each epoch, so a "
                f"pass does not serve all samples: choose a multiple of {self.global_batch}, or pass drop_last=False",
            )

    def saved_sizes(self, size: Size | None) -> dict[str, object]:
        """Return the image sizes as JSON values for a state; `size` is the pipeline's."""
        if size is None:
            return {"size": None}
        saved = self._steps(0).saved_sizes()
        if saved is None:
            sizes = [[phase.first, list(phase.size)] for phase in self.phases] or [[0, list(size)]]
            saved = [each for at, each in enumerate(sizes) if not at or each[1] != sizes[at - 1][1]]
            if len(saved) < 2:
                saved = sizes[0][1]
            elif self.by_update:
                saved = {"by_update": saved}
        return {"size": saved}

    def identity(self) -> dict[str, object]:
        """Return the settings common to the schedules of all ranks, except data, order and seed, as JSON values."""
        batch_size = list(map(list, self.phases)) if self.phases else self.batch_size
        rounds = None if self.rounds is None else asdict(self.rounds)
        own = {"indices": self.order.first_digest} if isinstance(self.order, OwnOrder) else {}
        padded = self.pad is not False
        return {"batch_size": batch_size, "drop_last": self.drop_last, "pad": padded, "patches": rounds, **own}

    def knows(self, epoch: int) -> bool:
        """Return whether the order of `epoch` is known; the user's own order is known after `begin`."""
        return not isinstance(self.order, EpochIndices) or self.order.has(epoch)

    def begin(self, epoch: int) -> str:
        """Make the order of `epoch` known, and return a digest of the user's own indices; "" for other orders.

        Raises LoaderError E-MISUSE and E-STATE for the user's own order.
        """
        return self.order.begin(epoch) if isinstance(self.order, OwnOrder) else ""

    def for_workers(self) -> Schedule:
        """Return the schedule for worker processes, without the user's own order, which only one process calls."""
        return replace(self, order=self.order.for_workers()) if isinstance(self.order, OwnOrder) else self

    def saved(self, cursor: Cursor) -> dict[str, object]:
        """Return the settings that decide what follows `cursor`, for a state.

        They are the global batch, if it decides where steps begin, and a digest of the user's own order of an epoch
        that has begun.
        """
        batches: Any = self._steps(cursor.epoch).saved_batches()
        if self.by_update:
            batches = [[phase.first, phase.batch_size * self.world_size] for phase in self.phases]
        saved = {"global_batch": batches, "indices": cursor.position and self.begin(cursor.epoch)}
        return {name: value for name, value in saved.items() if value}

    def check_saved(self, state: Mapping[str, object], cursor: Cursor) -> None:
        """Raise LoaderError E-STATE if `cursor` needs the global batch or the indices of the state, and they differ."""
        if isinstance(self.order, OwnOrder) and cursor.position:
            self.order.begin(cursor.epoch, state.get("indices", ""))
        batches, was = self.saved(cursor).get("global_batch"), state.get("global_batch")
        begun = cursor.position or (self.by_update and cursor.epoch)
        if batches is not None and begun and was != batches:
            what = "with sizes by update" if self.by_update else f"in {self._steps(cursor.epoch).kind}"
            cause = f"{what} an epoch must continue with the same global batch: saved {was}, now {batches}"
            raise LoaderError("E-STATE", cause, fix="choose batch_size so that batch_size * ranks is the same as saved")

    def batch(self, epoch: int, position: int) -> Index:
        """Return this rank's sample indices, int64 [batch_size], of the step at global `position`; -1 past the end."""
        steps = self._steps(epoch)
        first, count, within = steps.group(position, max(1, _AT_ONCE * self.world_size // steps.batch(position)))
        indices: Index = self._batches(epoch, first, count)[within].copy()
        return indices

    @keep_results(16)
    def _batches(self, epoch: int, first: int, count: int) -> Index:
        """Return the sample indices, int64 [steps, batch_size], of several steps from `first` on; see `batch`."""
        positions = self._steps(epoch).positions(first, count)
        inside = positions < self.n
        indices = np.where(inside, positions, -1)
        assert self.order is not None
        indices[inside] = self.order(epoch, positions[inside])
        return indices

    def draw_keys(self, cursor: Cursor) -> Index | None:
        """Return the keys of the random draws for the step at `cursor`, int64 [batch].

        They are the rows' positions in the epoch; None if the sample index is the key.
        """
        assert self.order is not None
        drawn: Index | None = self._steps(cursor.epoch).positions(cursor.position)[0] if self.order.repeats else None
        return drawn

    def next_in_order(self, cursor: Cursor, row: int, most: int) -> Index:
        """Return the samples that follow row `row` of the step at `cursor` in the order, int64 [most or fewer].

        After the end of the epoch they continue at its start. They do not depend on rank, workers or a resume.
        """
        first = self._steps(cursor.epoch).positions(cursor.position)[0, row]
        assert self.order is not None
        return self.order(cursor.epoch, (first + np.arange(1, min(most + 1, self.n), dtype=np.int64)) % self.n)

    def positions_between(self, epoch: int, start: int, begin: int, end: int) -> Index:
        """Return the positions in [begin, end) that this rank serves, int64 [k]. A step begins at `start`."""
        steps = self._steps(epoch)
        size = steps.batch(start)
        first = (begin - start) // size
        count = min(-(-(end - start) // size), steps.left(start)) - first
        positions = steps.positions(start + first * size, count)
        return positions[(positions >= begin) & (positions < min(end, self.n))]
