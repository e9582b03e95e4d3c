"""Announcements of the next samples to a source; the order is known long before the samples are needed."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from penstock.loaders.data.sources.contract import BlockSource, Source, is_fetching
from penstock.loaders.order.block_order import BlockShuffled
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.order.schedule import Schedule
from penstock.loaders.order.virtual_epochs import VirtualEpochs

_MAX_STEPS = 1024  # batches ahead, even if they are small
LEAD = 1.25  # samples are announced this far ahead, as a multiple of the samples that are mixed together,
_MIN_STEPS = 4  # or this many steps ahead
_OVERTAKEN = 64  # steps: a batch this close before the first one was overtaken by another thread


class ReadAhead:
    """Announces the batches of a schedule to its source, as far ahead as the source has memory; shared by all threads.

    A worker process announces only its own batches, which torch assigns to the processes in turn. If
    blocks of neighbours are mixed and the source has enough memory for them, a process that makes all batches
    announces whole blocks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._next = NOWHERE
        self._blocks: BlockFetch | None = None

    def advance(self, source: Source, schedule: Schedule, cursor: Cursor) -> None:
        """Announce the batch at `cursor` if it was not announced, and batches after it."""
        if not is_fetching(source):
            return
        with self._lock:
            worker = get_worker_info()
            stride = 1 if worker is None else worker.num_workers
            if self._is_late(schedule, cursor):
                index = schedule.batch(*cursor)
                source.announce(index[index >= 0])
                return
            is_over = self._blocks is not None and not self._blocks.has_room()
            if is_over or not self._begun <= cursor <= self._next:
                source.forget()  # also announcements of an earlier loader over this source
                self._begun = self._next = cursor
                self._blocks = BlockFetch.of(source, schedule, cursor) if stride == 1 else None
            if self._blocks is not None:
                self._next = self._blocks.advance(cursor)
                return
            ahead = _MAX_STEPS * schedule.global_batch
            served, n = cursor.epoch * schedule.n + cursor.position, schedule.n
            while self._next <= cursor or (
                source.has_room
                and schedule.knows(self._next.epoch)
                and self._next.epoch * n + self._next.position - served < ahead
            ):
                index = schedule.batch(*self._next)
                source.announce(index[index >= 0])
                for _ in range(stride):
                    self._next = schedule.after(self._next)

    def _is_late(self, schedule: Schedule, cursor: Cursor) -> bool:
        """Return whether the batch at `cursor` precedes the first one because another thread was faster."""
        if not cursor < self._begun:
            return False
        for _ in range(_OVERTAKEN):
            cursor = schedule.after(cursor)
            if cursor >= self._begun:
                return cursor == self._begun
        return False


class BlockFetch:
    """Announces the samples of an order by blocks, window after window, sorted by their places in the source.

    A window is a range of positions with whole blocks (`span_at` of the order). Each batch announces a proportional
    number of a window's blocks, so the amount of data that is being fetched or waiting remains constant.
    """

    _start: Cursor
    _samples: npt.NDArray[np.int64]  # of the current window, sorted
    _num_announced: int  # of these samples
    _first: int  # place in the stream at which the window begins
    _size: int  # number of its positions
    _end: Cursor

    def __init__(
        self, source: BlockSource, schedule: Schedule, order: BlockShuffled | VirtualEpochs, blocks: BlockShuffled
    ) -> None:
        """Announce the samples of `order`, which serves all or some epochs of `blocks`."""
        self._source, self._schedule, self._order, self._block = source, schedule, order, blocks.block
        lead = max(int(LEAD * min(blocks.n, blocks.mixed)), _MIN_STEPS * schedule.global_batch)
        self._ahead = schedule.global_batch + lead  # positions that are announced before they are served

    @classmethod
    def of(cls, source: Source, schedule: Schedule, cursor: Cursor) -> BlockFetch | None:
        """Return a BlockFetch from `cursor` on; None if the order has no blocks, or the source too little memory."""
        order = schedule.order
        blocks = order.order if isinstance(order, VirtualEpochs) else order
        if not isinstance(blocks, BlockShuffled) or not isinstance(source, BlockSource):
            return None
        assert isinstance(order, (BlockShuffled, VirtualEpochs))
        fetch = cls(source, schedule, order, blocks)
        if order.span_at(*cursor) is None or schedule.changes_within or not fetch.has_room():
            return None
        fetch._start = cursor  # a step begins here; in later epochs, at 0
        first = schedule.batch(*cursor)
        source.announce_blocks(first[first >= 0])
        fetch._open_window(schedule.after(cursor))
        return fetch

    def has_room(self) -> bool:
        """Return whether the source has room for this rank's fetched and waiting data; its disk may become full."""
        return self._source.make_room(-(-self._ahead // self._schedule.world_size))

    def advance(self, cursor: Cursor) -> Cursor:
        """Announce the samples that are due with the batch at `cursor`; return the end of the current window."""
        schedule = self._schedule
        target = cursor.epoch * schedule.n + cursor.position + self._ahead
        while True:
            due = len(self._samples) * max(0, target - self._first) // self._size
            if due < len(self._samples):  # whole blocks
                due = int(np.searchsorted(self._samples, self._samples[due] // self._block * self._block))
            if due > self._num_announced:
                self._source.announce_blocks(self._samples[self._num_announced : due])
                self._num_announced = due
            if target < self._first + self._size:
                return self._end
            self._open_window(self._end)

    def _open_window(self, cursor: Cursor) -> None:
        """Make the window of `cursor` the current one, with the samples from `cursor` on that this rank serves."""
        schedule = self._schedule
        epoch, begin = cursor if cursor.position < schedule.n else (cursor.epoch + 1, 0)
        span = self._order.span_at(epoch, begin)
        assert span is not None  # an order has spans everywhere or nowhere
        end = span[1]
        start = self._start.position if epoch == self._start.epoch else 0
        self._samples = np.sort(self._order(epoch, schedule.positions_between(epoch, start, begin, end)))
        self._num_announced, self._end = 0, Cursor(epoch, end)
        self._first, self._size = epoch * schedule.n + begin, end - begin
