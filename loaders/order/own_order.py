"""The user's own order: the indices of one epoch at a time, computed when the epoch begins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from penstock.loaders.order.permutation import Index
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError

_NONE, _EVERY = -1, -2  # in place of an epoch's number: no indices yet; the same indices in every epoch
_FIX = "order must be a function of the epoch: return the same indices whenever it is called for an epoch"


class EpochIndices:
    """An Order that is an array: the indices of the current epoch, in memory shared with worker processes.

    Attributes:
        n: indices per epoch.
    """

    name = "own-1"
    repeats = True

    def __init__(self, memory: SharedArray) -> None:
        """memory: int64 [1 + n], the number of the epoch, then its indices."""
        self._memory, self.n = memory, memory.shape[0] - 1

    def has(self, epoch: int) -> bool:
        """Return whether the indices of `epoch` are known."""
        return int(self._memory.array[0]) in (epoch, _EVERY)

    def __call__(self, epoch: int, positions: Index) -> Index:
        if not self.has(epoch):  # only for work that a seek has made stale
            raise LookupError(f"the indices of epoch {epoch} are not known")
        indices: Index = self._memory.array[1:][positions]
        return indices


class OwnOrder(EpochIndices):
    """The order of the user, in the process that iterates. It is called by the thread that takes the batches.

    Args:
        indices_of: returns the indices of an epoch, int64 [n]; raises ValueError.
        first: the indices of epoch 0.
        is_fixed: whether all epochs have the same indices.

    Attributes:
        first_digest: hex digest of the indices of epoch 0.
    """

    def __init__(self, indices_of: Callable[[int], Index], first: Index, *, is_fixed: bool) -> None:
        super().__init__(SharedArray.create((len(first) + 1,), np.int64, name="penstock-order"))
        self._indices_of, self._is_fixed = indices_of, is_fixed
        self.first_digest = _digest(first)
        self._digests = {0: self.first_digest}
        self._store(0, first)

    def __reduce__(self) -> tuple[object, ...]:
        # Another process that iterates has its own memory, because it may be in another epoch.
        return _restore, (self._indices_of, self._indices_of(0), self._is_fixed)

    def for_workers(self) -> EpochIndices:
        """Return the order for worker processes, which read the memory of this one."""
        return EpochIndices(self._memory)

    def begin(self, epoch: int, digest: object = None) -> str:
        """Make the indices of `epoch` known, and return their digest.

        digest: the digest of a state. Raises LoaderError E-MISUSE for invalid indices, E-STATE for others than before
        or in the state; then the current epoch stays.
        """
        if self.has(epoch):
            found = self.first_digest if self._is_fixed else self._digests[epoch]
            self._compare(epoch, found, digest)
            return found
        try:
            indices = self._indices_of(epoch)
            if len(indices) != self.n:
                raise ValueError(
                    f"order must return as many indices for every epoch, got {len(indices):,} for epoch {epoch} and "
                    f"{self.n:,} for epoch 0"
                )
        except ValueError as error:
            fix = "return valid indices for every epoch; epoch_samples= takes the first ones of each"
            raise LoaderError("E-MISUSE", str(error), fix=fix) from error.__cause__
        found = _digest(indices)
        self._compare(epoch, found, digest)
        if self._digests.setdefault(epoch, found) != found:
            raise LoaderError("E-STATE", f"order returned other indices for epoch {epoch} than before", fix=_FIX)
        self._store(epoch, indices)
        return found

    def _store(self, epoch: int, indices: Index) -> None:
        self._memory.array[0] = _NONE
        self._memory.array[1:] = indices
        self._memory.array[0] = _EVERY if self._is_fixed else epoch

    def _compare(self, epoch: int, found: str, saved: object) -> None:
        if saved not in (None, found):
            cause = (
                f"order returns other indices for epoch {epoch} than in the saved state (digest {saved}, now {found})"
            )
            raise LoaderError("E-STATE", cause, fix=_FIX)


def _digest(indices: Index) -> str:
    return hashlib.blake2b(indices.astype("<i8").data, digest_size=8).hexdigest()


def _restore(indices_of: Callable[[int], Index], first: Index, is_fixed: bool) -> OwnOrder:
    return OwnOrder(indices_of, first, is_fixed=is_fixed)
