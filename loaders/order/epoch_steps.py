"""The steps of an epoch: where each begins, and how many samples it takes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.plan.philox import STREAM_LENGTHS, random_words


class EpochSteps(Protocol):
    """Lay out the steps of one epoch; a place is the number of samples that were served before it.

    Attributes:
        end: the place behind the last step, which may lie beyond the last sample.
    """

    @property
    def end(self) -> int: ...

    def batch(self, place: int) -> int:
        """Return the samples, of all ranks, that a full step at `place` takes."""
        ...

    def left(self, place: int) -> int:
        """Count the steps from `place` on."""
        ...

    def number(self, place: int) -> int:
        """Return the number of the step at `place`."""
        ...

    def after(self, place: int) -> int:
        """Return the place after the step at `place`."""
        ...

    def group(self, place: int, steps: int) -> tuple[int, int]:
        """Return the place of a group of `steps` that are looked up together, and which of it the one at `place` is."""
        ...


def count_steps(samples: int, batch: int, *, drop_last: bool) -> int:
    """Return how many steps of `batch` samples serve `samples`."""
    return samples // batch if drop_last else -(-samples // batch)


@dataclass(frozen=True)
class EqualSteps:
    """Lay out steps that take equally many samples from each of a few places on.

    Attributes:
        n: samples of the epoch.
        drop_last: whether samples that do not fill a step are left out.
        starts: the places at which the batch changes, from 0 on; a step begins at each.
        batches: samples per step, of all ranks, from each of these on.
    """

    n: int
    drop_last: bool
    starts: tuple[int, ...]
    batches: tuple[int, ...]

    @property
    def end(self) -> int:
        last = self.starts[-1]
        return last + count_steps(self.n - last, self.batches[-1], drop_last=self.drop_last) * self.batches[-1]

    def batch(self, place: int) -> int:
        return self.batches[self._part(place)]

    def left(self, place: int) -> int:
        part = self._part(place)
        begins = place, *self.starts[part + 1 :]
        parts = zip(pairwise(begins), self.batches[part:], strict=False)
        steps = sum(count_steps(end - begin, batch, drop_last=False) for (begin, end), batch in parts)
        return steps + count_steps(self.n - begins[-1], self.batches[-1], drop_last=self.drop_last)

    def last(self, place: int) -> int:
        """Return where the last of the steps from `place` on begins."""
        begin = max(place, self.starts[-1])
        return begin + (self.left(begin) - 1) * self.batches[-1]

    def number(self, place: int) -> int:
        part = self._part(place)
        begin = self.starts[part]
        return self.left(0) - self.left(begin) + (place - begin) // self.batches[part]

    def after(self, place: int) -> int:
        return place + self.batch(place)

    def group(self, place: int, steps: int) -> tuple[int, int]:
        part = self._part(place)
        within = (place - self.starts[part]) // self.batches[part] % steps
        return place - within * self.batches[part], within

    def _part(self, place: int) -> int:
        return bisect_right(self.starts, place) - 1


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Say which sequence lengths batches have, and how many samples.

    Attributes:
        patch: side of a patch, in pixels.
        lengths: patches per sample of the steps of a round; the longest image that fits is taken.
        batch_sizes: samples per step and rank, for each length.
        max_ratio: the most by which an image is enlarged; None for no limit.
        shuffled: whether the steps of each round come in an order that is drawn.
    """

    patch: int
    lengths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    max_ratio: float | None
    shuffled: bool

    def batches(self, world_size: int) -> list[int]:
        """Return the samples of all ranks for each length."""
        return [batch_size * world_size for batch_size in self.batch_sizes]


@dataclass(frozen=True)
class RoundSteps:
    """Lay out the steps of one epoch, in memory that does not grow with it.

    The steps of the last round, which is not whole, come in the order of `batches`: so all epochs have equally many.

    Attributes:
        n: samples of the epoch.
        drop_last: whether samples that do not fill a step are left out.
        batches: samples of the steps of a round, of all ranks.
        key: seed and epoch by which the order in each round is drawn; None for the order of `batches`.
    """

    n: int
    drop_last: bool
    batches: tuple[int, ...]
    key: tuple[int, int] | None

    @property
    def end(self) -> int:
        return _count(self)[1]

    def batch(self, place: int) -> int:
        return self.batches[self.kind(place)]

    def kind(self, place: int) -> int:
        """Return which of `batches` the step at `place` is."""
        number, step = self._find(place)
        return self._order(number)[step]

    def left(self, place: int) -> int:
        steps, end = _count(self)
        return 0 if place >= end else steps - self.number(place)

    def number(self, place: int) -> int:
        number, step = self._find(place)
        return number * len(self.batches) + step

    def after(self, place: int) -> int:
        return place + self.batch(place)

    def group(self, place: int, steps: int) -> tuple[int, int]:
        return place, 0

    def _find(self, place: int) -> tuple[int, int]:
        """Return the round and the number in it of the step that begins at `place`. Raises LoaderError E-STATE."""
        number, within = divmod(place, sum(self.batches))
        begins = [0, *accumulate(self.batches[kind] for kind in self._order(number)[:-1])]
        if within not in begins:
            cause = f"no batch begins at position {place} of an epoch in patches"
            raise LoaderError("E-STATE", cause, fix="resume with the patches and the number of ranks of the state")
        return number, begins.index(within)

    def _order(self, number: int) -> tuple[int, ...]:
        is_whole = (number + 1) * sum(self.batches) <= self.n
        return _draw(len(self.batches), *self.key, number) if self.key and is_whole else tuple(range(len(self.batches)))


@lru_cache(maxsize=64)
def _draw(count: int, seed: int, epoch: int, number: int) -> tuple[int, ...]:
    """Return the steps of a round in the order that is drawn for it."""
    words = random_words(seed, epoch, np.array([number], np.int64), STREAM_LENGTHS, count)[0]
    return tuple(np.argsort(words, kind="stable").tolist())


@lru_cache(maxsize=16)
def _count(steps: RoundSteps) -> tuple[int, int]:
    """Return the number of steps, and the place behind the last one."""
    rounds, rest = divmod(steps.n, sum(steps.batches))
    count, end = rounds * len(steps.batches), steps.n - rest
    for batch in steps.batches:
        if end >= steps.n or (steps.drop_last and end + batch > steps.n):
            break
        count, end = count + 1, end + batch
    return count, end
