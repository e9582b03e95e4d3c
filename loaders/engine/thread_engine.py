"""An engine of threads in the consumer's process, filling slots with whole batches."""

from __future__ import annotations

import contextlib
import faulthandler
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from penstock.loaders.engine.batch_maker import BatchMaker
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.engine.slot_needs import thread_needs
from penstock.loaders.engine.slots import SPARE_SLOTS, BatchSlots, Produced, WorkItem
from penstock.loaders.stream.contract import Cursor, HostBatch
from penstock.loaders.system.needs import Needs, ensure
from penstock.loaders.system.recycled_memory import Recycler
from penstock.loaders.workers.progress import BUSY, SAMPLE, SINCE_NS, Progress
from penstock.pipelines.errors import LoaderError

_POLL_S = 0.5
_LEAVE_S = 2.0  # at close, for threads to leave: they look up at each sample


class BatchQueue:
    """What the threads share: where the stream goes on, the batches that are done; everything under one lock.

    rows: of the table of progress, one for each thread that makes batches.
    """

    def __init__(self, settings: ProducerSettings, slots: BatchSlots, recycler: Recycler, rows: int) -> None:
        self.schedule, self.slots, self.recycler = settings.schedule, slots, recycler
        self.progress = Progress(rows, shared=False)
        self.changed = threading.Condition()
        self.cursor, self.handed_out, self.taken = Cursor(0, 0), 0, 0
        self.done: dict[int, Produced] = {}
        self.made = self.done  # where the workers put a batch; another dict if there is more to be done with it
        self.closed = False

    def take(self, ahead: int) -> tuple[int, WorkItem] | None:
        """The next batch to make and its number, waiting while `ahead` batches are under way; None at the end."""
        with self.changed:
            while not self.closed and (self.handed_out - self.taken >= ahead or not len(self.recycler)):
                self.changed.wait(_POLL_S)  # not for ever: a slot comes back by a finalizer, which wakes nobody
            return None if self.closed else self.next_item()

    def next_item(self) -> tuple[int, WorkItem]:
        """The next batch to make and its number; takes a slot."""
        number, item = self.handed_out, WorkItem(self.progress.generation, self.cursor, self.recycler.take())
        self.handed_out += 1
        self.cursor = self.schedule.after(self.cursor)
        return number, item

    def put(self, number: int, produced: Produced, where: dict[int, Produced]) -> None:
        """Book a batch in `made` or `done`; one that is no longer wanted gives its slot back."""
        with self.changed:
            if produced.item.generation != self.progress.generation or self.closed:
                self.recycler.give_back(produced.item.slot)
            else:
                where[number] = produced
            self.changed.notify_all()

    def seek(self, cursor: Cursor) -> None:
        """Go on at `cursor`; what was made for another place is dropped."""
        with self.changed:
            self.progress.next_generation()
            for produced in (*self.done.values(), *(self.made.values() if self.made is not self.done else ())):
                self.recycler.give_back(produced.item.slot)
            self.done.clear()
            self.made.clear()
            self.cursor, self.handed_out, self.taken = cursor, 0, 0
            self.changed.notify_all()

    def close(self) -> None:
        """Let the threads go; nothing is handed out any more."""
        with self.changed:
            self.closed = True
            self.progress.next_generation()
            self.done.clear()
            self.made.clear()
            self.changed.notify_all()


def _work(queue: BatchQueue, maker: BatchMaker, ahead: int) -> None:
    while (work := queue.take(ahead)) is not None:
        number, item = work
        try:
            produced = maker.make(item)
        except BaseException as error:  # such as SystemExit: of no use in a thread, but the consumer waits for it
            produced = stopped_by(error, item, maker.sample)
        queue.put(number, produced, queue.made)


def stopped_by(error: BaseException, item: WorkItem, sample: int) -> Produced:
    """What is said of an exception in a thread that works on `sample` of `item`, -1 for none."""
    told = LoaderError("E-WORKER", f"{type(error).__name__}: {error}", sample=sample if sample >= 0 else None)
    told.__cause__ = error
    return Produced(item, (), 0.0, False, told)


def _run(job: Callable[[], None], settled: threading.Semaphore) -> None:
    torch.set_num_threads(1)  # of this thread
    settled.release()
    job()


class ThreadEngine:
    """Engine on threads; see Engine for the methods' contract.

    workers: threads, 0 to work in the consumer. prefetch: batches ahead for each. watchdog_s: seconds without any
    progress before a batch that is waited for is given up.
    """

    def __init__(self, name: str, settings: ProducerSettings, workers: int, prefetch: int, watchdog_s: float) -> None:
        self.name, self._settings = name, settings
        self._workers, self._prefetch, self._watchdog_s = workers, prefetch, watchdog_s
        self._ahead = max(1, workers * prefetch)
        self.consumer_bytes = 0
        self._queue: BatchQueue | None = None
        self._threads: list[threading.Thread] = []
        self._maker: BatchMaker | None = None
        self._next = Cursor(-1, 0)
        self._closed = False

    def seek(self, cursor: Cursor) -> None:
        """See Engine.seek. Starts the threads at the first call."""
        if self._closed:
            raise LoaderError("E-MISUSE", "the loader is closed", fix="make a new loader", backend=self.name)
        if self._queue is None:
            self._start(cursor)
        elif cursor != self._next:
            self._queue.seek(cursor)
        self._next = cursor

    def _start(self, cursor: Cursor) -> None:
        count, schedule = self._ahead + SPARE_SLOTS, self._settings.schedule
        needs = self._needs()
        needs = needs._replace(own_bytes=needs.own_bytes + self.consumer_bytes)
        ensure(needs, backend=self.name, rank=schedule.rank)
        slots = BatchSlots(count, schedule.batch_size, self._settings.pipeline, shared=False)
        queue = self._queue = self._new_queue(slots, Recycler(count))
        queue.cursor = cursor
        makers = [self._new_maker(queue, worker) for worker in range(max(1, self._workers))]
        if not self._workers:
            self._maker = makers[0]
            return
        jobs: list[tuple[str, Callable[[], None]]] = [
            (f"penstock-{n}", partial(_work, queue, maker, self._ahead)) for n, maker in enumerate(makers)
        ]
        jobs += self._more_jobs(queue)
        # Also at exit: a thread that meets the end of the interpreter inside torch would take the process with it.
        self._retire = weakref.finalize(self, _retire, queue, self._threads)
        settled, own_threads = threading.Semaphore(0), torch.get_num_threads()
        try:
            for name, job in jobs:
                thread = threading.Thread(target=_run, args=(job, settled), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            for _ in jobs:
                settled.acquire()
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError):  # can't start new thread
                rank = self._settings.schedule.rank
                raise LoaderError(
                    "E-MEM", f"threads cannot be started: {error}", backend=self.name, rank=rank
                ) from error
            raise
        finally:
            torch.set_num_threads(own_threads)  # what the last thread set is what torch gives to threads yet to come

    def _needs(self) -> Needs:
        """What starting takes, without the consumer's share."""
        return thread_needs(self._ahead, self._settings.schedule.batch_size, self._settings.pipeline.size)

    def _new_queue(self, slots: BatchSlots, recycler: Recycler) -> BatchQueue:
        return BatchQueue(self._settings, slots, recycler, max(1, self._workers))

    def _new_maker(self, queue: BatchQueue, worker: int) -> BatchMaker:
        return BatchMaker(self._settings, queue.slots, queue.progress, worker, own_process=False)

    def _more_jobs(self, queue: BatchQueue) -> list[tuple[str, Callable[[], None]]]:
        """(name, work) of the threads that a kind of engine has beside its workers."""
        return []

    def _completed(self, produced: Produced) -> Produced:
        """What is done with a batch that was made in the consumer."""
        return produced

    def next(self) -> HostBatch:
        """See Engine.next."""
        queue = self._queue
        assert queue is not None
        self._next = Cursor(-1, 0)  # if Ctrl-C comes from here on, a batch may be lost: a seek makes it again
        produced = self._wait(queue) if self._workers else self._make(queue)
        if produced.error is not None:
            self.close()
            raise produced.error.located(backend=self.name, rank=self._settings.schedule.rank) from (
                produced.error.__cause__
            )
        try:
            batch = queue.slots.hand_out(produced, queue.recycler)
        except Exception:  # no memory for a copy
            queue.recycler.give_back(produced.item.slot)
            raise
        self._next = self._settings.schedule.after(produced.item.cursor)
        return batch

    def _make(self, queue: BatchQueue) -> Produced:
        assert self._maker is not None
        _, item = queue.next_item()
        try:
            return self._completed(self._maker.make(item))
        except BaseException:  # Ctrl-C: the same batch again, if the consumer goes on
            queue.recycler.give_back(item.slot)
            queue.cursor = item.cursor
            raise

    def _wait(self, queue: BatchQueue) -> Produced:
        heard, silent_s, polled_s = b"", 0.0, time.monotonic()
        with queue.changed:
            queue.changed.notify_all()  # a slot may have come back since
            while queue.taken not in queue.done and silent_s < self._watchdog_s and not queue.closed:
                queue.changed.wait(_POLL_S)
                now, table = time.monotonic(), queue.progress.table.tobytes()
                # In small steps: after Ctrl-Z and `fg` the clock has moved on, and nobody was silent.
                silent_s = silent_s + min(now - polled_s, 2 * _POLL_S) if table == heard else 0.0
                heard, polled_s = table, now
            if queue.taken in queue.done:
                queue.taken += 1
                queue.changed.notify_all()
                return queue.done.pop(queue.taken - 1)
        if queue.closed:
            raise LoaderError("E-MISUSE", "the loader was closed while a batch was waited for", backend=self.name)
        raise self._silent(queue, silent_s)

    def _silent(self, queue: BatchQueue, silent_s: float) -> LoaderError:
        """The error for threads that do not move, after every thread has told its stack."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            faulthandler.dump_traceback(2, all_threads=True)  # sys.stderr may be a notebook's, without a descriptor
        where: dict[str, Any] = {"backend": self.name, "rank": self._settings.schedule.rank}
        busy = queue.progress.table[:-1][queue.progress.table[:-1, BUSY] == 1]
        if len(busy):
            sample = int(busy[busy[:, SINCE_NS].argmin(), SAMPLE])
            where.update(sample=sample, path=self._settings.source.path(sample))
        self.close()
        return LoaderError("E-TIMEOUT", f"no thread has made progress for {silent_s:.0f} s", **where)

    def ready(self) -> int:
        """See Engine.ready."""
        return len(self._queue.done) if self._queue is not None else 0

    def describe(self) -> dict[str, object]:
        """See Engine.describe."""
        return {"backend": self.name, "workers": self._workers, "prefetch": self._prefetch, "workers_are": "threads"}

    def close(self) -> None:
        """See Engine.close."""
        self._closed = True
        queue, self._queue = self._queue, None
        if queue is None:
            return
        if self._workers:
            self._retire()
        if not any(thread.is_alive() for thread in self._threads):
            queue.slots.close()


def _retire(queue: BatchQueue, threads: list[threading.Thread]) -> None:
    queue.close()
    deadline = time.monotonic() + _LEAVE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))  # one that hangs in a read is left behind
