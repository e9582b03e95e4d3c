"""Batches for metric learning: each contains several classes, with the same number of samples of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from penstock.loaders.order.permutation import Index, Permutations
from penstock.loaders.system.shared_memory import SharedArray


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassShuffled:
    """Serve, in each batch of a rank, `per_batch` different classes with `per_class` samples each.

    The classes are shuffled, and each pass over them makes as many whole batches as possible; the other classes, fewer
    than `per_batch`, are left out of this pass at random. In each pass a class continues in its shuffled samples, also
    in the next epoch, so no sample of it repeats before all others were served. The samples that do not fill another
    `per_class` are left out of this shuffle at random. A class with fewer samples than `per_class` serves some of them
    again within a batch, each equally often except for a difference of one.

    Attributes:
        n: samples per epoch, in whole batches of a rank.
        seed: seed of the shuffles.
        per_class: samples of each class in a batch.
        per_batch: classes in a batch.
        starts: int64 [classes + 1], where the samples of each class begin in `members`, and the end of the last.
        members: the samples class by class, int32 if possible; shared by all workers.
        digest: hex digest of starts and members.
    """

    n: int
    seed: int
    per_class: int
    per_batch: int
    starts: Index
    members: SharedArray
    digest: str
    repeats: bool = True

    @property
    def name(self) -> str:
        return f"classes-1 {self.per_batch} x {self.per_class} in {self.n} {self.digest}"

    def __call__(self, epoch: int, positions: Index) -> Index:
        num_classes, per_pass = len(self.starts) - 1, (len(self.starts) - 1) // self.per_batch
        chunks, rows = np.divmod(np.asarray(positions, np.int64), self.per_class)
        batches, slots = np.divmod(chunks, self.per_batch)
        passes, numbers = np.divmod(batches, per_pass)
        every = np.full(len(rows), num_classes, np.int64)
        shuffled = Permutations.of_epoch(every, self.seed, epoch, 2 * passes)  # numbers of samples' shuffles are odd
        classes = shuffled(numbers * self.per_batch + slots)
        passes += epoch * -(-self.n // (self.per_class * self.per_batch * per_pass))
        sizes = np.diff(self.starts)[classes]
        turns, before = np.divmod(passes, np.maximum(1, sizes // self.per_class))
        places = np.where(sizes < self.per_class, rows % sizes, before * self.per_class + rows)
        shuffled = Permutations.of_epoch(sizes, self.seed, 0, 2 * (classes + num_classes * turns) + 1)
        found: Index = self.members.array[self.starts[classes] + shuffled(places)].astype(np.int64)
        return found


def make_class_shuffled(
    labels: Index, *, n: int, seed: int, per_class: int, per_batch: int, least: int = 1
) -> ClassShuffled:
    """Return the order for the classes with at least `least` samples. labels: int64 [samples], -1 for no class."""
    counts = np.bincount(labels[labels >= 0])
    served = np.flatnonzero(counts >= least)
    order = np.argsort(labels, kind="stable")
    order = order[np.isin(labels[order], served)]
    starts = np.zeros(len(served) + 1, np.int64)
    np.cumsum(counts[served], out=starts[1:])
    members = SharedArray.create(
        (len(order),), np.int32 if len(labels) < 1 << 31 else np.int64, name="penstock-classes"
    )
    members.array[:] = order
    digest = hashlib.blake2b(starts.data, digest_size=8)
    digest.update(members.array.data)
    batch = per_class * per_batch
    about = {"per_class": per_class, "per_batch": per_batch, "starts": starts, "members": members}
    return ClassShuffled(n=max(1, n // batch) * batch, seed=seed, digest=digest.hexdigest(), **about)  # type: ignore[arg-type]
