"""Announces blocks of neighbouring samples whole, so that a few large requests fetch them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import BlockSource, Source
from penstock.loaders.stream.engine_contract import Cursor
from penstock.loaders.stream.schedule import Schedule

LEAD = 1.25  # of what is mixed at a time: so far ahead of their use samples are announced,
_MIN_STEPS = 4  # or so many steps


class BlockFetch:
    """Announces window after window of an order by blocks, sorted by their places in the source.

    A window is a range of positions that hold whole blocks (`span_at` of the order). With each batch, as many blocks of
    a window are announced as fit its size, so what is on its way or waits to be used is always as much.
    """

    _samples: npt.NDArray[np.int64]  # of the window that is being announced, sorted
    _num_announced: int  # of these
    _first: int  # place in the stream at which that window begins
    _size: int  # its positions
    _end: Cursor

    def __init__(self, source: BlockSource, schedule: Schedule, cursor: Cursor) -> None:
        """Begin with the batch at `cursor`, which is announced first of all."""
        self._source, self._schedule = source, schedule
        self._start = cursor  # a step begins here; in later epochs, at 0
        first = schedule.batch(*cursor)
        source.announce_blocks(first[first >= 0])
        self._open_window(schedule.after(cursor))

    @classmethod
    def of(cls, source: Source, schedule: Schedule, cursor: Cursor) -> BlockFetch | None:
        """Return what announces blocks from `cursor` on; None if the order has none, or the source no room for them."""
        span_at = getattr(schedule.order, "span_at", None)
        if (
            span_at is None
            or not isinstance(source, BlockSource)
            or span_at(*cursor) is None
            or schedule.changes_within
        ):
            return None
        return cls(source, schedule, cursor) if source.can_hold(num_held(schedule)) else None

    @property
    def can_go_on(self) -> bool:
        """Whether the source has room still: a local copy may have filled its disk."""
        return self._source.can_hold(num_held(self._schedule))

    def advance(self, cursor: Cursor) -> Cursor:
        """Announce what is due when the batch at `cursor` is made; return the end of what has begun to be announced."""
        schedule = self._schedule
        target = cursor.epoch * schedule.n + cursor.position + schedule.global_batch + _lead(schedule)
        while True:
            due = len(self._samples) * max(0, target - self._first) // self._size
            if due < len(self._samples):  # whole blocks
                block: int = schedule.order.block  # type: ignore[union-attr]
                due = int(np.searchsorted(self._samples, self._samples[due] // block * block))
            if due > self._num_announced:
                self._source.announce_blocks(self._samples[self._num_announced : due])
                self._num_announced = due
            if target < self._first + self._size:
                return self._end
            self._open_window(self._end)

    def _open_window(self, cursor: Cursor) -> None:
        """Take up the samples from `cursor` to the end of its window that this rank serves."""
        schedule = self._schedule
        epoch, begin = cursor if cursor.position < schedule.n else (cursor.epoch + 1, 0)
        order: Any = schedule.order
        end = order.span_at(epoch, begin)[1]
        start = self._start.position if epoch == self._start.epoch else 0
        self._samples = np.sort(order(epoch, schedule.at(Cursor(epoch, 0)).positions_between(start, begin, end)))
        self._num_announced, self._end = 0, Cursor(epoch, end)
        self._first, self._size = epoch * schedule.n + begin, end - begin


def num_held(schedule: Schedule) -> int:
    """Return how many samples of this rank are on their way, or wait to be used, where blocks are announced whole."""
    return -(-(schedule.global_batch + _lead(schedule)) // schedule.world_size)


def _lead(schedule: Schedule) -> int:
    order: Any = schedule.order
    return max(int(LEAD * min(schedule.n, order.mixed)), _MIN_STEPS * schedule.global_batch)
