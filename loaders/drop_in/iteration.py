"""Iteration is one pass over the rest of an epoch of the drop-in DataLoader, and counts what it delivers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.loaders.drop_in.batch_iterator import BatchIterator
from penstock.loaders.feed.tensor_feed import TensorFeed, tensors_in
from penstock.loaders.stream.contract import LoaderStats
from penstock.pipelines.errors import LoaderError


@dataclass
class Place:
    """Hold where a DataLoader is in its stream.

    Attributes:
        epoch: number of the epoch.
        step: batches of it that are delivered.
        fresh: whether nothing of the epoch was delivered since it was chosen.
        iteration: number of iterations that have begun.
        moves: how often the place was set from outside.
        closed: whether the DataLoader is closed.
        stats: where time went so far.
        started_s: when the first batch was asked for (perf_counter), 0 before.
    """

    epoch: int = 0
    step: int = 0
    fresh: bool = True
    iteration: int = 0
    moves: int = 0
    closed: bool = False
    stats: LoaderStats = field(default_factory=LoaderStats)
    started_s: float = 0.0

    def begin(self) -> None:
        """Begin an iteration: where a state was loaded, or at the next epoch if this one was left early."""
        if not self.fresh:
            self.epoch, self.step, self.fresh = self.epoch + 1, 0, True
        self.iteration += 1

    def go_to(self, epoch: int, step: int) -> None:
        """Set the place from outside; iterators over the old one end with an error."""
        self.epoch, self.step, self.fresh = epoch, step, True
        self.moves += 1

    def count(self, batch: Any, ready: int, asked_s: float) -> None:
        """Count a delivered batch that was asked for at `asked_s` (perf_counter), when `ready` were finished."""
        now, first = time.perf_counter(), next(tensors_in(batch), None)
        self.started_s = self.started_s or asked_s
        images = 0 if first is None else first.shape[0] if first.ndim else 1
        self.stats = self.stats.with_batch(images, wait_s=now - asked_s, elapsed_s=now - self.started_s, ready=ready)


class Iteration:
    """Iterator that a DataLoader hands out.

    Args:
        owner: the DataLoader, referenced because the workers end with it.
        source: the iterator of torch.
        steps: batches of a whole epoch, None if unknown.
        shared: whether later iterations use the same workers, which ends this one.
        device: where the batches go, None to leave them where torch puts them.
    """

    def __init__(
        self, owner: object, place: Place, source: Any, *, steps: int | None, shared: bool, device: torch.device | None
    ) -> None:
        self._owner, self._place, self._source = owner, place, source
        self._steps, self._shared = steps, shared
        self._number, self._moves = place.iteration, place.moves
        self._epoch, self._step, self._failed = place.epoch, place.step, 0
        self._ready: Callable[[], int] = source.ready if isinstance(source, BatchIterator) else _none_known
        self._take: Callable[[], Any] = source.__next__
        if device is not None:
            feed = TensorFeed(source.__next__, self._ready, device)
            self._take, self._ready = feed.next, feed.ready

    def __iter__(self) -> Iteration:
        return self

    def __len__(self) -> int:
        return len(self._source)

    def __next__(self) -> Any:
        self._refuse_if_outdated()
        place, asked_s, ready = self._place, time.perf_counter(), self._ready()
        try:
            batch = self._take()
        except StopIteration:
            if self._is_current and place.epoch == self._epoch:
                place.epoch, place.step, place.fresh = self._epoch + 1, 0, True
            raise
        except Exception:  # torch goes on with the batch after the failed one, if it is asked
            self._failed += 1
            raise
        self._step, self._failed = self._step + 1 + self._failed, 0
        if self._is_current:
            last = self._step == self._steps
            place.epoch, place.step, place.fresh = self._epoch + last, 0 if last else self._step, last
        place.count(batch, ready, asked_s)
        return batch

    @property
    def _is_current(self) -> bool:
        return self._number == self._place.iteration

    def _refuse_if_outdated(self) -> None:
        """Raise LoaderError E-MISUSE if the loader moved on; only iterators without shared workers run side by side."""
        why = None
        if self._place.closed:
            why = "the loader was closed"
        elif self._moves != self._place.moves:
            why = "the loader was sent to another place"
        elif self._shared and not self._is_current:
            why = "another iteration over this loader has begun"
        if why is not None:
            fix = "use one iterator at a time, or pass persistent_workers=False"
            raise LoaderError("E-MISUSE", why, fix=fix)


def _none_known() -> int:
    return 0
