"""BatchQueue: the batches to make and the finished ones, in stream order, shared by the threads of an engine."""

from __future__ import annotations

from collections.abc import Callable

from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.producer import Producer
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.batch_maker import BatchMaker
from penstock.loaders.run.engine.slots import SPARE_SLOTS, BatchSlots
from penstock.loaders.run.engine.work_items import Produced, WorkItem, join_parts
from penstock.loaders.run.workers.worker_progress import POLL_S, WorkerProgress
from penstock.loaders.system.recycled_memory import Recycler
from penstock.loaders.system.signal_safe import SignalSafeCondition
from penstock.pipelines.errors import LoaderError


class BatchQueue:
    """The open work and the finished batches, under one lock.

    Threads refer to the queue, never to the engine, so that a deleted engine can end them.

    Attributes:
        slots: memory of the batches, three more slots than batches in progress.
        recycler: manages the numbers of free slots.
        progress: a row for each of `workers` threads, and one for a batch that is made outside of them.
        changed: the lock; notified at every change.
        cursor: place in the stream of the next batch to start.
        made: finished batches that were not taken yet, by number.
        closed: whether the threads must end.
    """

    def __init__(
        self, planner: BatchPlanner, workers: int, ahead: int, cursor: Cursor, *, pinned: bool = False, parts: int = 1
    ) -> None:
        """Start at `cursor`, with at most `ahead` batches in progress: started and not yet delivered.

        pinned: whether a GPU may copy out of the slots. parts: number of parts of a batch, assigned separately.
        """
        self._planner, self._ahead, self._parts = planner, ahead, parts
        self.slots = BatchSlots(ahead + SPARE_SLOTS, planner.largest_layout, shared=pinned)
        if pinned:
            self.slots.pin(planner.device)
        self.recycler = Recycler(ahead + SPARE_SLOTS)
        self.progress = WorkerProgress(workers + 1, shared=False)
        self.changed = SignalSafeCondition()
        self.cursor, self._handed_out, self._taken, self._delivered = cursor, 0, 0, 0
        self._rest: WorkItem | None = None  # the next part of a batch whose parts are not all assigned
        self._reports: dict[int, list[Produced]] = {}  # by slot, for batches that threads are making
        self._cut: dict[int, int] = {}  # by slot, number of parts of a batch that were assigned before a seek()
        self.made: dict[int, Produced] = {}
        self.closed = False

    def maker(self, worker: int, make_producer: Callable[[BatchPlanner], Producer] = Producer) -> BatchMaker:
        """Return a batch maker for thread `worker`; the number after the last one is for batches made elsewhere."""
        return BatchMaker(self._planner, self.slots, self.progress, worker, make_producer)

    def wait_for_work(self) -> tuple[int, WorkItem] | None:
        """Wait for a free slot; return the next part to make and its batch's number, None at the end."""
        with self.changed:
            while not self.closed:
                has_room = self._handed_out - self._delivered < self._ahead and len(self.recycler) > 0
                if self._rest is not None or (has_room and self._planner.schedule.knows(self.cursor.epoch)):
                    return self.next_work()
                self.changed.wait(POLL_S)  # with a limit: a finalizer frees a slot without a notification
            return None

    def next_work(self) -> tuple[int, WorkItem]:
        """Return the next part to make and its batch's number; the first part of a batch takes a slot."""
        item = self._rest
        if item is None:
            item = WorkItem(self.progress.generation, self.cursor, self.recycler.take(), 0, self._parts)
            self._handed_out += 1
            self.cursor = self._planner.schedule.after(self.cursor)
        self._rest = item._replace(part=item.part + 1) if item.part + 1 < item.parts else None
        return self._handed_out - 1, item

    def is_wanted(self, item: WorkItem) -> bool:
        """Return whether `item` is still wanted: no seek() or close() since it was assigned."""
        return item.generation == self.progress.generation and not self.closed

    def put(self, number: int, produced: Produced) -> None:
        """Store a finished part. The last part completes its batch, or frees its slot if it is no longer wanted."""
        slot = produced.item.slot
        with self.changed:
            reports = self._reports.setdefault(slot, [])
            reports.append(produced)
            if len(reports) < self._cut.get(slot, produced.item.parts):
                return
            del self._reports[slot]
            self._cut.pop(slot, None)
            if self.is_wanted(produced.item):
                self.made[number] = join_parts(reports) if produced.item.parts > 1 else produced
            else:
                self.recycler.give_back(slot)
            self.changed.notify_all()

    def take(self, *, wait: bool = False) -> Produced | None:
        """Return the next batch in stream order; None at the end, or if it is not finished yet (unless `wait`)."""
        with self.changed:
            while self._taken not in self.made:
                if self.closed or not wait:
                    return None
                self.changed.wait()
            self._taken += 1
            return self.made.pop(self._taken - 1)

    def ready(self) -> int:
        """Return the number of batches that take() returns without waiting, which must be consecutive."""
        with self.changed:
            number = self._taken
            while number in self.made:
                number += 1
            return number - self._taken

    def make_room(self) -> None:
        """Record a delivered batch, so that another one may be made."""
        with self.changed:
            self._delivered += 1
            self.changed.notify_all()

    def seek(self, cursor: Cursor) -> None:
        """Continue at `cursor`, and drop all batches made for another place."""
        with self.changed:
            self.progress.next_generation()
            while self.made:  # one by one, so that after Ctrl-C no slot is freed twice
                self.recycler.give_back(self.made.popitem()[1].item.slot)
            rest, self._rest = self._rest, None
            if rest is not None:  # threads with its other parts still write to the slot
                self._cut[rest.slot] = rest.part
                if len(self._reports.get(rest.slot, ())) == rest.part:
                    del self._reports[rest.slot], self._cut[rest.slot]
                    self.recycler.give_back(rest.slot)
            self.cursor, self._handed_out, self._taken, self._delivered = cursor, 0, 0, 0
            self.changed.notify_all()

    def close(self) -> None:
        """Assign no more work, so that the threads end."""
        with self.changed:
            self.closed = True
            self.progress.next_generation()
            self.made.clear()
            self.changed.notify_all()


def make_batches(queue: BatchQueue, maker: BatchMaker) -> None:
    """Make batches until the queue is closed. This is the function of a thread."""
    while (work := queue.wait_for_work()) is not None:
        number, item = work
        try:
            produced = maker.make(item)
        except BaseException as error:  # such as SystemExit: useless in a thread, but the consumer must see it
            produced = stopped_by(error, item, maker.sample)
        queue.put(number, produced)


def stopped_by(error: BaseException, item: WorkItem, sample: int) -> Produced:
    """Return the message about an exception in a thread that worked on `sample` (-1 for none) of `item`."""
    found = LoaderError("E-WORKER", f"{type(error).__name__}: {error}", sample=sample if sample >= 0 else None)
    found.__cause__ = error
    return Produced(item, error=found)
