"""ThreadEngine: makes batches in threads of the consumer's process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.make.producer import Producer
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.run.engine.batch_maker import BatchMaker
from penstock.loaders.run.engine.batch_queue import BatchQueue, make_batches
from penstock.loaders.run.engine.engine_states import EngineStates
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.slots import crops_bytes, share_batches, thread_needs
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.loaders.run.workers.launch import deferred_signals
from penstock.loaders.run.workers.needs import ensure
from penstock.loaders.run.workers.worker_progress import BUSY, POLL_S, SAMPLE, SINCE_NS, Watchdog
from penstock.loaders.system.torch_threads import keep_own_number, run_alone
from penstock.pipelines.errors import LoaderError

Taken = TypeVar("Taken")

_LEAVE_S = 2.0  # time at close for threads to end; they check before each sample


class ThreadEngine(EngineStates):
    r"""An Engine with threads as workers.

                        BatchQueue: one lock, `ahead` batches in progress, `ahead` + 3 slots
        seek(cursor) --> WorkItems --> thread "penstock-0": BatchMaker -> Producer --+
                             |   \---> thread "penstock-1": each makes a part of     |
                             ^         the batch, in the same slot                   v
                             |                                       Produced, joined per batch
        next() <-- HostBatch <-- deliver() <-- wait_for(take), in the stream's order <--/
                       |
                       +--> its slot is free for a WorkItem when no tensor refers to it any more

    Another engine may own one and finish its batches. A thread started by run() takes them from `queue`, and the
    consumer waits for finished ones with wait_for(). Without threads the consumer calls take(). In both cases deliver()
    returns them.

    Args:
        options: number of threads, batches ahead of all together, and the watchdog's time.
        ahead: batches in progress; by default from share_batches.
        make_producer: makes the producer that fills the slots; with another one than Producer, another decoder fills
            most of them.

    Attributes:
        queue: work and batches of the threads; None if the engine does not run.
    """

    def __init__(
        self,
        name: str,
        planner: BatchPlanner,
        options: WorkerOptions,
        *,
        ahead: int | None = None,
        make_producer: Callable[[BatchPlanner], Producer] = Producer,
    ) -> None:
        super().__init__(name, planner)
        self._make_producer = make_producer
        self._options, self._workers = options, options.num_workers
        size = planner.largest_layout.batch_size if make_producer is Producer else 1  # tasks are for whole batches
        self._parts, few = share_batches(self._workers, options.prefetch, size)
        self._ahead = ahead or few
        self.queue: BatchQueue | None = None
        self._threads: list[threading.Thread] = []
        self._maker: BatchMaker | None = None

    @property
    def _is_running(self) -> bool:
        return self.queue is not None

    def _move(self, cursor: Cursor) -> None:
        self._running().seek(cursor)

    @deferred_signals()
    def _start(self, cursor: Cursor) -> None:
        layout = self._planner.largest_layout
        crops = crops_bytes(layout, self._workers, self._parts)
        ensure(thread_needs(self._ahead, layout, self._planner.consumer_bytes + crops), **self._where())
        pinned = self._make_producer is Producer and torch.device(self._planner.device).type == "cuda"
        queue = BatchQueue(self._planner, self._workers, self._ahead, cursor, pinned=pinned, parts=self._parts)
        # Also at exit: a thread inside torch at the end of the interpreter would crash the process.
        self._retire = weakref.finalize(self, _retire, os.getpid(), queue, self._threads)
        self._owner = os.getpid()
        makers = [queue.maker(worker, self._make_producer) for worker in range(max(1, self._workers))]
        if not self._workers:
            self._maker = makers.pop()
        self.queue = queue
        try:
            self.run({f"penstock-{n}": partial(make_batches, queue, maker) for n, maker in enumerate(makers)})
        except BaseException:  # a second Ctrl-C; it closes itself otherwise
            self.close()
            raise

    def run(self, jobs: dict[str, Callable[[], None]]) -> None:
        """Run each of `jobs` in a thread with its name; a job ends when `queue` is closed. Raises LoaderError E-MEM."""
        try:
            with keep_own_number() as ready:
                for name, job in jobs.items():
                    thread = threading.Thread(target=run_alone, args=(ready, job), name=name, daemon=True)
                    thread.start()
                    self._threads.append(thread)
                for _ in jobs:
                    ready.acquire()
        except BaseException as error:
            self.close()
            if isinstance(error, RuntimeError):  # can't start new thread
                raise LoaderError("E-MEM", f"threads cannot be started: {error}", **self._where()) from error
            raise

    def next(self) -> HostBatch:
        return self.deliver(self.take())

    def take(self) -> Produced:
        """Return the next batch: wait for the threads, or make it here if there are none."""
        queue, maker = self._running(), self._maker
        if maker is None:
            return self.wait_for(queue.take)
        self._next = NOWHERE
        _, item = queue.next_work()
        try:
            return maker.make(item)
        except BaseException:  # Ctrl-C: the same batch again, if the consumer continues
            self.take_back(item)
            raise

    def take_back(self, item: WorkItem) -> None:
        """Make the batch of `item` again as the next one; only without threads."""
        queue = self._running()
        queue.recycler.give_back(item.slot)
        queue.cursor = item.cursor

    def wait_for(self, take: Callable[[], Taken | None]) -> Taken:
        """Wait until `take` returns a value, and return it; `take` is called under the queue's lock.

        Raises LoaderError E-TIMEOUT when no thread makes progress, E-MISUSE when the engine is closed meanwhile.
        """
        queue = self._running()
        self._next = NOWHERE
        watchdog = Watchdog(self._options.watchdog_s)
        with queue.changed:
            queue.changed.notify_all()  # a slot may have been freed since
            while (taken := take()) is None and not queue.closed:
                if watchdog.has_expired(queue.progress.table.tobytes()):
                    break
                queue.changed.wait(POLL_S)
        if taken is not None:
            return taken
        if queue.closed:
            raise self._closed_error(waiting=True)
        raise self._silent(queue, watchdog.silent_s)

    def deliver(self, produced: Produced, images: torch.Tensor | None = None) -> HostBatch:
        """Return a batch, with `images` as in BatchSlots.hand_out, or raise its error."""
        queue = self._running()
        queue.make_room()
        self._raise_error_of(produced)
        try:
            return self._hand_out(produced, queue.slots, queue.recycler, images)
        except Exception:  # no memory for a copy
            queue.recycler.give_back(produced.item.slot)
            raise

    def _running(self) -> BatchQueue:
        if self.queue is None:
            raise self._closed_error()
        return self.queue

    def _silent(self, queue: BatchQueue, silent_s: float) -> LoaderError:
        """Return the error for threads without progress, after every thread has printed its stack."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            faulthandler.dump_traceback(2, all_threads=True)  # sys.stderr may be a notebook's, without a descriptor
        busy = queue.progress.table[:-1][queue.progress.table[:-1, BUSY] == 1]
        sample = int(busy[busy[:, SINCE_NS].argmin(), SAMPLE]) if len(busy) else -1
        self.close()
        return LoaderError("E-TIMEOUT", f"no thread has made progress for {silent_s:.0f} s", **self._where(sample))

    def ready(self) -> int:
        return self.queue.ready() if self.queue is not None else 0

    def describe(self) -> dict[str, object]:
        prefetch = self._options.prefetch
        about = {"backend": self.name, "workers": self._workers, "prefetch": prefetch, "workers_are": "threads"}
        return about if self.queue is None else {**about, **self._about_slots(self.queue.slots)}

    def close(self) -> None:
        self._closed = True
        queue = self.queue
        if queue is None:
            return
        if self._owner == os.getpid():
            queue.close()  # also here, because _retire does not run again after a Ctrl-C in it
        self._retire()
        self.queue = None
        if not any(thread.is_alive() for thread in self._threads):
            queue.slots.close()


def _retire(owner: int, queue: BatchQueue, threads: list[threading.Thread]) -> None:
    if os.getpid() != owner:  # forked: the threads belong to the parent, and one may have held the lock
        return
    queue.close()
    deadline = time.monotonic() + _LEAVE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))  # a thread that hangs in a read is left behind
