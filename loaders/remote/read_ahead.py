"""Announces to a source which samples come next, because the order is known long before they are needed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from penstock.loaders.remote.block_fetch import BlockFetch
from penstock.loaders.sources.contract import FetchingSource, Source, is_fetching
from penstock.loaders.stream.engine_contract import NOWHERE, Cursor
from penstock.loaders.stream.schedule import Schedule

_MAX_STEPS = 1024  # batches ahead, however small they are


class ReadAhead:
    """Announces the batches of a schedule to its source, as far ahead as the source has room; shared by all threads.

    A worker process announces the batches that it will make itself: torch deals them to the processes in turn. Where
    blocks of neighbours are mixed and the source can hold what is mixed at a time, a process that makes all batches
    announces whole blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._next = self._at = NOWHERE
        self._blocks: BlockFetch | None = None

    def advance(self, source: Source, schedule: Schedule, cursor: Cursor) -> None:
        """Announce the batch at `cursor` unless it was announced, and batches after it."""
        if not is_fetching(source):
            return
        with self._lock:
            worker = get_worker_info()
            stride = 1 if worker is None else worker.num_workers
            self._at = cursor
            is_over = self._blocks is not None and not self._blocks.can_go_on
            if is_over or not self._begun <= cursor <= self._next:
                source.forget()  # also what an earlier loader over this source left
                self._begun = self._next = cursor
                self._blocks = BlockFetch.of(source, schedule, cursor) if stride == 1 else None
                self._show_future(source, schedule)
            if self._blocks is not None:
                self._next = self._blocks.advance(cursor)
                return
            ahead = _MAX_STEPS * schedule.global_batch
            while self._next <= cursor or (source.has_room and self._distance(schedule, cursor) < ahead):
                index = schedule.batch(*self._next)
                source.announce(index[index >= 0])
                for _ in range(stride):
                    self._next = schedule.after(self._next)

    def _show_future(self, source: FetchingSource, schedule: Schedule) -> None:
        """Tell a source that keeps samples when it needs each again, if the order can be computed backwards."""
        set_future = getattr(source, "set_future", None)
        positions_of = getattr(schedule.order, "positions_of", None)
        if set_future is None or positions_of is None:
            return

        def next_use(samples: npt.NDArray[np.int64], is_past: bool) -> npt.NDArray[np.int64]:
            # Blocks are stored before they are needed, so what is announced is needed at this pass still.
            is_past = is_past and self._blocks is None
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
        return ReadAhead, ()
