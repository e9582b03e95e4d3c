"""The steps of an epoch: where each begins, and its number of samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from penstock.loaders.order.permutation import Index
from penstock.pipelines.errors import LoaderError, count_text
from penstock.pipelines.plan.philox import STREAM_LENGTHS, random_words

Size = tuple[int, int]  # height and width of images, in pixels
Shape = Size | int | None  # image size of a batch; for patches, the sequence length; None if it never changes


@dataclass(frozen=True, eq=False, kw_only=True)
class EpochSteps(ABC):
    """The steps of one epoch. A place is the number of samples that were served before it.

    Attributes:
        n: samples of the epoch.
        drop_last: whether samples that do not fill a step are left out.
        rank: the rank that positions are computed for.
        world_size: number of ranks.
        lanes: number of lanes of the order; see BlockShuffled.
        shift: lane of the first position.
        copies: how many consecutive positions have the same sample; see RepeatShuffled.
        kind: name of these steps in messages, if they begin at certain places only.
    """

    n: int
    drop_last: bool
    rank: int
    world_size: int
    lanes: int
    shift: int = 0
    copies: int = 1
    kind: ClassVar[str] = ""

    @property
    @abstractmethod
    def end(self) -> int:
        """Return the place after the last step. It may be beyond the last sample."""

    @abstractmethod
    def batch(self, place: int) -> int:
        """Return the number of samples of a full step at `place`, on all ranks."""

    @abstractmethod
    def left(self, place: int) -> int:
        """Return the number of steps from `place` on."""

    @abstractmethod
    def number(self, place: int) -> int:
        """Return the number of the step at `place`. Raises LoaderError E-STATE if no step begins there."""

    def after(self, place: int) -> int:
        """Return the place after the step at `place`."""
        return place + self.batch(place)

    def group(self, place: int, most: int) -> tuple[int, int, int]:
        """Return the steps that are computed together: first place, number of steps, and the index of `place`."""
        return place, 1, 0

    def positions(self, place: int, steps: int = 1) -> Index:
        """Return the positions that the rank serves in equal steps from `place` on, int64 [steps, batch_size].

        Positions of n and above are without a sample. They come last.
        """
        batch, rows = self.batch(place), self._rows(place)
        begins = place + batch * np.arange(steps, dtype=np.int64)[:, None]
        if self.copies > 1:
            positions = _separate_copies(self.copies, begins, batch, rows)
        else:
            modulus = math.gcd(self.lanes, batch)
            remainders, turns = np.divmod(rows, batch // modulus)
            positions = begins + (remainders - begins - self.shift) % modulus + turns * modulus
        outside = positions >= self.n
        if outside.any():
            positions = np.take_along_axis(positions, np.argsort(outside, axis=1, kind="stable"), axis=1)
        return positions

    def _rows(self, place: int) -> Index:
        batch_size = self.batch(place) // self.world_size
        return self.rank * batch_size + np.arange(batch_size, dtype=np.int64)

    def served(self, place: int) -> int:
        """Return the number of steps from `place` on in which the rank has a sample."""
        return self.left(place)

    def shape(self, place: int) -> Shape:
        """Return the shape of the images of the step at `place`."""
        return None

    def shapes(self) -> list[tuple[int, Shape]]:
        """Return the samples of a full step on all ranks, and its shape, for each kind of step."""
        return []

    def saved_batches(self) -> int | list[int] | None:
        """Return the batches that decide where steps begin, for states; None if a step may begin anywhere."""
        return None

    def saved_sizes(self) -> object:
        """Return the sizes of all steps as JSON values for a state; None if the steps do not decide them."""
        return None

    def refuse_never_full(self, batch: int) -> None:
        """Raise ValueError if a global batch of `batch` samples is never full."""
        refuse_never_full(batch, self.n, count_text(self.n, "sample"))


def _separate_copies(copies: int, begins: Index, batch: int, rows: Index) -> Index:
    """Return the positions of `rows` in steps at `begins`, sorted by their remainder modulo `copies`.

    Two copies of a sample are then at least batch // copies rows apart: on different ranks, if there are enough.
    begins: int64 [steps, 1]; rows: int64 [k]; returns int64 [steps, k].
    """
    firsts = begins + (np.arange(copies) - begins) % copies  # the first position with each remainder
    counts = np.maximum(0, -(-(begins + batch - firsts) // copies))
    starts = np.cumsum(counts, axis=1) - counts  # the first row with each remainder
    remainders = (rows[:, None] >= starts[:, None, 1:]).sum(axis=2)
    firsts, starts = (np.take_along_axis(each, remainders, axis=1) for each in (firsts, starts))
    positions: Index = firsts + (rows - starts) * copies
    return positions


def refuse_never_full(batch: int, samples: int, name: str, cure: str = "") -> None:
    """Raise ValueError if a global batch is larger than the samples that fill it."""
    if batch > samples:
        raise ValueError(
            f"{name} cannot fill a global batch of {batch}: lower batch_size, {cure}or pass drop_last=False"
        )


def count_steps(samples: int, batch: int, *, drop_last: bool) -> int:
    """Return the number of steps of `batch` samples that serve `samples`."""
    return samples // batch if drop_last else -(-samples // batch)


@dataclass(frozen=True, eq=False, kw_only=True)
class EqualSteps(EpochSteps):
    """Steps of equal size, which may change at a few places.

    Attributes:
        starts: the places at which the batch changes, from 0 on; a step begins at each.
        batches: samples per step on all ranks, from each of these places on.
        sizes: image sizes from each of these places on; None for the pipeline's size.
    """

    starts: tuple[int, ...]
    batches: tuple[int, ...]
    sizes: tuple[Size | None, ...]

    @property
    def end(self) -> int:
        last = self.starts[-1]
        return last + count_steps(self.n - last, self.batches[-1], drop_last=self.drop_last) * self.batches[-1]

    def batch(self, place: int) -> int:
        return self.batches[self._part(place)]

    def shape(self, place: int) -> Shape:
        return self.sizes[self._part(place)]

    def shapes(self) -> list[tuple[int, Shape]]:
        return list(zip(self.batches, self.sizes, strict=True))

    def left(self, place: int) -> int:
        part = self._part(place)
        begins = place, *self.starts[part + 1 :]
        parts = zip(pairwise(begins), self.batches[part:], strict=False)
        steps = sum(count_steps(end - begin, batch, drop_last=False) for (begin, end), batch in parts)
        return steps + count_steps(self.n - begins[-1], self.batches[-1], drop_last=self.drop_last)

    def number(self, place: int) -> int:
        part = self._part(place)
        begin = self.starts[part]
        return self.left(0) - self.left(begin) + (place - begin) // self.batches[part]

    def served(self, place: int) -> int:
        steps, begin = self.left(place), max(place, self.starts[-1])
        last = begin + (self.left(begin) - 1) * self.batches[-1]
        return steps - (steps > 0 and not (self.positions(last) < self.n).any())

    def group(self, place: int, most: int) -> tuple[int, int, int]:
        part = self._part(place)
        within = (place - self.starts[part]) // self.batches[part] % most
        return place - within * self.batches[part], most, within

    def _part(self, place: int) -> int:
        return bisect_right(self.starts, place) - 1


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Sequence lengths and sizes of the batches of a round.

    Attributes:
        patch: side of a patch, in pixels.
        lengths: patches per sample, for each step of a round; each image is scaled to the largest size that fits.
        batch_sizes: samples per step and rank, for each length.
        max_ratio: largest factor by which an image is enlarged; None for no limit.
        shuffled: whether the steps of each round are in random order.
    """

    patch: int
    lengths: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    max_ratio: float | None
    shuffled: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundSteps(EpochSteps):
    """The steps of one epoch in rounds. The memory does not depend on the length of the epoch.

    The steps of an incomplete last round are in the order of `rounds`, so all epochs have the same number of steps.

    Attributes:
        rounds: the steps of a round.
        batches: samples of each of these steps, on all ranks.
        key: seed and epoch for the random order of each round.
    """

    rounds: Rounds
    batches: tuple[int, ...]
    key: tuple[int, int]
    kind: ClassVar[str] = "patches"

    @property
    def end(self) -> int:
        return self._totals[1]

    def batch(self, place: int) -> int:
        return self.batches[self._kind(place)]

    def shape(self, place: int) -> Shape:
        return self.rounds.lengths[self._kind(place)]

    def shapes(self) -> list[tuple[int, Shape]]:
        return list(zip(self.batches, self.rounds.lengths, strict=True))

    def _kind(self, place: int) -> int:
        number, step = self._find(place)
        return self._order(number)[step]

    def left(self, place: int) -> int:
        steps, end = self._totals
        return 0 if place >= end else steps - self.number(place)

    def number(self, place: int) -> int:
        number, step = self._find(place)
        return number * len(self.batches) + step

    def saved_batches(self) -> list[int]:
        return list(self.batches)

    def saved_sizes(self) -> dict[str, object]:
        return {"patch": self.rounds.patch, "lengths": list(self.rounds.lengths), "max_ratio": self.rounds.max_ratio}

    def _find(self, place: int) -> tuple[int, int]:
        """Return the round of the step at `place`, and its number in the round. Raises LoaderError E-STATE."""
        number, within = divmod(place, sum(self.batches))
        begins = [0, *accumulate(self.batches[kind] for kind in self._order(number)[:-1])]
        if within not in begins:
            cause = f"no batch begins at position {place} of an epoch in patches"
            raise LoaderError("E-STATE", cause, fix="resume with the same patches and number of ranks as the state")
        return number, begins.index(within)

    def _order(self, number: int) -> tuple[int, ...]:
        is_whole = (number + 1) * sum(self.batches) <= self.n
        count = len(self.batches)
        return _draw(count, *self.key, number) if self.rounds.shuffled and is_whole else tuple(range(count))

    @cached_property
    def _totals(self) -> tuple[int, int]:
        """Return the number of steps, and the place after the last one."""
        rounds, rest = divmod(self.n, sum(self.batches))
        count, end = rounds * len(self.batches), self.n - rest
        for batch in self.batches:
            if end >= self.n or (self.drop_last and end + batch > self.n):
                break
            count, end = count + 1, end + batch
        return count, end


@lru_cache(maxsize=64)
def _draw(count: int, seed: int, epoch: int, number: int) -> tuple[int, ...]:
    """Return the steps of a round in random order."""
    words = random_words(seed, epoch, np.array([number], np.int64), STREAM_LENGTHS, count)[0]
    return tuple(np.argsort(words, kind="stable").tolist())
