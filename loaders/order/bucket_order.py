"""Order of samples in buckets. Each bucket has its own image size, and every global batch comes from one bucket."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.order.epoch_steps import EpochSteps, Shape, Size, refuse_never_full
from penstock.loaders.order.permutation import Index, Permutation
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError, count_text

_BATCHES, _FIRST_BUCKET = 0, 1  # numbers of the draws of an epoch
_AT_ONCE = 256  # steps whose buckets are looked up at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Bucketed:
    """An order of the samples of each bucket. A position is an index into the buckets, one after the other.

    Attributes:
        n: number of samples.
        seed: seed of the shuffle.
        shuffled: whether each epoch shuffles the samples of each bucket, and the batches of all buckets.
        sizes: image size of each bucket.
        starts: int64 [buckets + 1], where the samples of each bucket begin in `members`, and the end of the last.
        members: [n], the samples bucket by bucket, int32 if possible; shared by all workers.
        digest: hex digest of buckets and members.
    """

    n: int
    seed: int
    shuffled: bool
    sizes: tuple[Size, ...]
    starts: Index
    members: SharedArray
    digest: str
    repeats: bool = False

    @property
    def name(self) -> str:
        return f"buckets-1 {self.digest}"

    def __call__(self, epoch: int, positions: Index) -> Index:
        places = np.array(positions, np.int64)
        buckets = np.searchsorted(self.starts, places, "right") - 1
        for bucket in np.unique(buckets).tolist() if self.shuffled else ():
            some, first = np.flatnonzero(buckets == bucket), int(self.starts[bucket])
            count = int(self.starts[bucket + 1]) - first
            places[some] = first + _shuffle(count, self.seed, epoch, bucket)(places[some] - first)
        found: Index = self.members.array[places].astype(np.int64)
        return found

    def steps(self, epoch: int, global_batch: int, **about: Any) -> BucketSteps:
        """Return the steps of `epoch`, each of `global_batch` samples of one bucket; `about` as in EpochSteps."""
        held = np.diff(self.starts)
        counts = held // global_batch if about["drop_last"] else -(-held // global_batch)
        total = int(counts.sum())
        shuffle = Permutation.of_epoch(total, self.seed, epoch, _BATCHES) if self.shuffled and total else None
        about |= {"starts": self.starts, "sizes": self.sizes, "global_batch": global_batch}
        return BucketSteps(**about, counts=counts, shuffle=shuffle)


def make_bucketed(buckets: npt.NDArray[np.uint8], sizes: tuple[Size, ...], seed: int, *, shuffled: bool) -> Bucketed:
    """Return the order of samples in buckets. buckets: the bucket of each sample; sizes: image size of each bucket."""
    n = len(buckets)
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.bincount(buckets, minlength=len(sizes)), out=starts[1:])
    members = SharedArray.create((n,), np.int32 if n < 1 << 31 else np.int64, name="penstock-buckets")
    members.array[:] = np.argsort(buckets, kind="stable")
    digest = hashlib.blake2b(repr((sizes, starts.tolist())).encode("ascii"), digest_size=8)
    digest.update(members.array.data)
    about = {"sizes": sizes, "starts": starts, "members": members, "digest": digest.hexdigest()}
    return Bucketed(n=n, seed=seed, shuffled=shuffled, **about)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, kw_only=True)
class BucketSteps(EpochSteps):
    """The steps of one epoch in buckets. The memory does not depend on the length of the epoch.

    Each step takes `global_batch` samples of one bucket. The last step of a bucket may be short.

    Attributes:
        starts: as in Bucketed.
        sizes: as in Bucketed.
        global_batch: samples per step, of all ranks.
        counts: int64 [buckets], steps of each bucket.
        shuffle: permutes the steps; None for bucket after bucket.
    """

    starts: Index
    sizes: tuple[Size, ...]
    global_batch: int
    counts: Index
    shuffle: Permutation | None
    kind: ClassVar[str] = "buckets"

    def __len__(self) -> int:
        return int(self.ends[-1])

    @cached_property
    def ends(self) -> Index:
        """Return where the steps of each bucket end in the list of all steps, int64 [buckets]."""
        return np.cumsum(self.counts)

    @property
    def end(self) -> int:
        return self.place(len(self))

    def batch(self, place: int) -> int:
        return self.global_batch

    def shape(self, place: int) -> Shape:
        number = self.number(place)
        return self.sizes[_buckets(self, number // _AT_ONCE)[number % _AT_ONCE]]

    def shapes(self) -> list[tuple[int, Shape]]:
        return [(self.global_batch, size) for size in self.sizes]

    def left(self, place: int) -> int:
        return len(self) - self.number(place)

    def after(self, place: int) -> int:
        return self.place(self.number(place) + 1)

    def group(self, place: int, most: int) -> tuple[int, int, int]:
        number = self.number(place)
        return self.place(number - number % most), most, number % most

    def saved_batches(self) -> int:
        return self.global_batch

    def saved_sizes(self) -> list[list[int]]:
        return list(map(list, self.sizes))

    def refuse_never_full(self, batch: int) -> None:
        for size, count in zip(self.sizes, np.diff(self.starts).tolist(), strict=True):
            name = f"the {count_text(count, 'sample')} of bucket {size}"
            refuse_never_full(batch, count or batch, name, "leave the bucket out, ")

    @cached_property
    def _short(self) -> tuple[Index, Index]:
        """Return the sorted numbers of the short steps, and the samples missing before each of them and at the end.

        Both int64: [short] and [short + 1].
        """
        missing = self.counts * self.global_batch - np.diff(self.starts)
        some = np.flatnonzero(missing > 0)
        batches = self.ends[some] - 1
        numbers = batches if self.shuffle is None else self.shuffle.inverse(batches)
        order = np.argsort(numbers)
        return numbers[order], np.concatenate(([0], np.cumsum(missing[some][order])))

    def place(self, number: int) -> int:
        """Return the place at which step `number` begins; after the last step, the number of all samples."""
        short, missing = self._short
        return number * self.global_batch - int(missing[np.searchsorted(short, number, "left")])

    def number(self, place: int) -> int:
        """Return the number of the step that begins at `place`.

        Raises LoaderError E-STATE if no step begins there, because the place comes from another global batch.
        """
        short, missing = self._short
        passed = int(np.searchsorted(short * self.global_batch - missing[:-1], place, "left"))
        number, beyond = divmod(place + int(missing[passed]), self.global_batch)
        if beyond or number > len(self):
            cause = f"no batch of {self.global_batch} samples begins at position {place} of an epoch in buckets"
            raise LoaderError("E-STATE", cause, fix="resume with a batch_size that gives the state's global batch")
        return number

    def positions(self, place: int, steps: int = 1) -> Index:
        n, rows, numbers = self.n, self._rows(place), self.number(place) + np.arange(steps, dtype=np.int64)
        positions = np.full((len(numbers), len(rows)), n, np.int64)
        inside = numbers < len(self)
        batches = numbers[inside] if self.shuffle is None else self.shuffle(numbers[inside])
        buckets = np.searchsorted(self.ends, batches, "right")
        before = batches - (self.ends - self.counts)[buckets]
        found = (self.starts[buckets] + before * self.global_batch)[:, None] + rows
        positions[inside] = np.where(found < self.starts[buckets + 1, None], found, n)
        return positions


@lru_cache(maxsize=1024)
def _shuffle(count: int, seed: int, epoch: int, bucket: int) -> Permutation:
    return Permutation.of_epoch(count, seed, epoch, _FIRST_BUCKET + bucket)


@lru_cache(maxsize=16)
def _buckets(steps: BucketSteps, part: int) -> Index:
    """Return the buckets of _AT_ONCE steps, int64, from `part` * _AT_ONCE on; each is needed several times."""
    numbers = np.arange(part * _AT_ONCE, min((part + 1) * _AT_ONCE, len(steps)), dtype=np.int64)
    batches = numbers if steps.shuffle is None else steps.shuffle(numbers)
    return np.searchsorted(steps.ends, batches, "right")
