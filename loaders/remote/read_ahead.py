"""Announces to a source which samples come next, because the order is known long before they are needed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import Source, is_fetching
from penstock.loaders.stream.engine_contract import NOWHERE, Cursor
from penstock.loaders.stream.schedule import Schedule

_MAX_STEPS = 1024  # batches ahead, however small they are


class ReadAhead:
    """Announces the batches of a schedule to its source, as far ahead as the source has room; shared by all threads.

    A worker process makes some batches only, so in one the batch at hand is announced and no more.
    """

    def __init__(self, max_steps: int = _MAX_STEPS) -> None:
        self._max_steps = max_steps
        self._lock = threading.Lock()
        self._begun = self._next = self._at = NOWHERE

    def advance(self, source: Source, schedule: Schedule, cursor: Cursor) -> None:
        """Announce the batch at `cursor` unless it was announced, and batches after it."""
        if not is_fetching(source):
            return
        with self._lock:
            self._at = cursor
            if not self._begun <= cursor <= self._next or not self._max_steps:
                if self._max_steps:
                    source.forget()  # also what an earlier loader over this source left
                self._begun = self._next = cursor
                self._show_future(source, schedule)
            ahead = self._max_steps * schedule.global_batch
            while self._next <= cursor or (source.has_room and self._distance(schedule, cursor) < ahead):
                index = schedule.batch(*self._next)
                source.announce(index[index >= 0])
                self._next = schedule.after(self._next)

    def _show_future(self, source: Source, schedule: Schedule) -> None:
        """Tell a source that keeps samples when it needs each again, if the order can be computed backwards."""
        set_future = getattr(source, "set_future", None)
        positions_of = getattr(schedule.order, "positions_of", None)
        if set_future is None or positions_of is None:
            return

        def next_use(samples: npt.NDArray[np.int64], is_past: bool) -> npt.NDArray[np.int64]:
            epoch, position = schedule.after(self._next) if is_past else self._at
            first = positions_of(epoch, samples)
            when: npt.NDArray[np.int64] = np.where(
                first >= position, first, schedule.n + positions_of(epoch + 1, samples)
            )
            return epoch * schedule.n + when

        set_future(next_use)

    def _distance(self, schedule: Schedule, cursor: Cursor) -> int:
        """Return how many samples lie between `cursor` and the next batch to announce."""
        epochs = self._next.epoch - cursor.epoch
        return epochs * schedule.n + self._next.position - cursor.position

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadAhead, (0,)
