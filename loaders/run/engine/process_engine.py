"""ProcessEngine: the worker processes of a torch DataLoader make batches in slots in shared memory."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing import current_process
from typing import Any

import torch

from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.make.layout import BatchLayout
from penstock.loaders.order.cursor import NOWHERE, Cursor
from penstock.loaders.run.engine.batch_maker import BatchMaker
from penstock.loaders.run.engine.engine_states import EngineStates
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.slots import SPARE_SLOTS, BatchSlots, crops_bytes, slot_bytes
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.loaders.run.workers.failures import death_error, silence_error
from penstock.loaders.run.workers.needs import Needs, ensure
from penstock.loaders.run.workers.watch import WatchedIterator, start_workers
from penstock.loaders.run.workers.worker_progress import BUSY, MADE, PID, SAMPLE, Watchdog, WorkerProgress
from penstock.loaders.system.recycled_memory import Recycler
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_choice

_OWN_CODE = "define your source or transform in a module, or pass workers_are='threads'"
_START_FIX = f'see its traceback above; {_OWN_CODE}; in a script, add `if __name__ == "__main__":`'
_START_METHODS = ("forkserver", "spawn", "fork")
WORKERS_ARE = ("auto", "processes", "threads")


@dataclass(frozen=True, kw_only=True)
class ProcessOptions(WorkerOptions):
    """Options of an engine of processes, in addition to WorkerOptions.

    Attributes:
        workers_are: "processes"; "threads", which start at once and need less memory, but share one interpreter lock;
            or "auto" for threads if nearly all of the work is done without that lock.
        start_method: how processes are started, "forkserver" (default), "spawn" or "fork".
    """

    workers_are: str = "auto"
    start_method: str = "forkserver"

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_choice("start_method", self.start_method, _START_METHODS)
        checked_choice("workers_are", self.workers_are, WORKERS_ARE)

    @property
    def num_workers(self) -> int:
        """Number of workers. The default is 0 in a daemonic process (such as a worker), which may not start any."""
        return 0 if self.workers is None and current_process().daemon else super().num_workers

    @property
    def has_processes(self) -> bool:
        """Whether there are worker processes, instead of threads or only the consumer; "auto" may choose threads."""
        return self.workers_are != "threads" and self.num_workers > 0


def process_needs(options: ProcessOptions, layout: BatchLayout) -> Needs:
    """Return the needs of an engine of processes for batches of `layout`."""
    workers = options.num_workers
    slots = slot_bytes(workers * options.prefetch, layout)
    return Needs(slots, crops_bytes(layout, workers), workers, 16 * workers + 16, options.start_method)


class _Dispatch:
    """The sampler of torch's DataLoader: endless work items across epochs. `cursor` can be set at any time."""

    def __init__(self, planner: BatchPlanner, slots: Recycler, progress: WorkerProgress) -> None:
        self._schedule, self._slots, self._progress = planner.schedule, slots, progress
        self.cursor = Cursor(0, 0)
        self.under_way: deque[WorkItem] = deque()  # assigned, and not yet returned
        self.num_back = 0

    def __iter__(self) -> Iterator[WorkItem]:
        return self

    def __next__(self) -> WorkItem:
        if not self._schedule.knows(self.cursor.epoch):
            raise StopIteration  # until its epoch begins; see WatchedIterator.refill
        item = WorkItem(self._progress.generation, self.cursor, self._slots.take())
        self.cursor = self._schedule.after(self.cursor)
        self.under_way.append(item)
        return item

    def note_back(self, item: WorkItem) -> None:
        """Record that `item` and all items before it have returned; torch keeps their order."""
        while self.under_way:
            self.num_back += 1
            if self.under_way.popleft() == item:
                break

    def count_ready(self) -> int:
        """Return the number of next batches that are finished; torch assigns its items to the workers in turn."""
        made, ready = self._progress.table[:-1, MADE].tolist(), 0
        for number, item in enumerate(self.under_way, self.num_back):
            if made[number % len(made)] <= number // len(made):
                break
            ready += item.generation == self._progress.generation
        return ready


class ProcessEngine(EngineStates):
    """An Engine with the worker processes of a torch DataLoader."""

    def __init__(self, name: str, planner: BatchPlanner, options: ProcessOptions) -> None:
        super().__init__(name, planner)
        self._options, self._workers = options, options.num_workers
        self._in_flight = self._workers * options.prefetch
        self._iterator: WatchedIterator | None = None
        self._busy = threading.RLock()  # held while waiting for a batch, and while the workers are started or ended
        self._watchdog = Watchdog(options.watchdog_s)

    def seek(self, cursor: Cursor) -> None:
        with self._busy:
            super().seek(cursor)

    @property
    def _is_running(self) -> bool:
        return self._iterator is not None

    def _move(self, cursor: Cursor) -> None:
        self._progress.next_generation()
        self._dispatch.cursor = cursor

    def _start(self, cursor: Cursor) -> None:
        schedule, options = self._planner.schedule, self._options
        layout = self._planner.largest_layout
        needs = process_needs(options, layout)
        ensure(needs._replace(own_bytes=needs.own_bytes + self._planner.consumer_bytes), **self._where())
        count = self._in_flight + SPARE_SLOTS
        self._slots = BatchSlots(count, layout, shared=True)
        # A consumer on a GPU never holds a slot, so its forked children do not need unchanged slots.
        self._recycler = Recycler(count, shared=torch.device(self._planner.device).type == "cpu")
        self._progress = WorkerProgress(self._workers, shared=True)
        self._dispatch = _Dispatch(self._planner, self._recycler, self._progress)
        self._dispatch.cursor = cursor
        place = cursor
        # Torch gives the first batches to the workers one by one. Until a worker begins, its row contains the first
        # sample of its batch.
        for worker in range(self._workers):
            if not schedule.knows(place.epoch):
                break
            self._progress.table[worker, SAMPLE] = schedule.batch(*place)[0]
            place = schedule.after(place)
        try:
            self._iterator = start_workers(
                BatchMaker(replace(self._planner, schedule=schedule.for_workers()), self._slots, self._progress),
                self._dispatch,
                self._workers,
                options.prefetch,
                self.worker_died,
                self.worker_silent,
                source=self._planner.source,
                start_method=options.start_method,
            )
        except BaseException as error:
            self._slots.close()
            self._progress.close()
            if isinstance(error, LoaderError):
                raise error.locate(**self._where()) from error.__cause__
            if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)):
                cause = f"this cannot be sent to worker processes: {error}"
                raise LoaderError("E-MISUSE", cause, fix=_OWN_CODE, **self._where()) from error
            raise
        self._slots.pin(self._planner.device)  # after the start, so that forked workers do not use CUDA

    def next(self) -> HostBatch:
        with self._busy:
            if self._closed:
                raise self._closed_error(waiting=True)
            self._next = NOWHERE
            return self._next_batch()

    def _next_batch(self) -> HostBatch:
        while True:
            try:
                iterator: Any = self._iterator
                iterator.raise_if_dead()  # now, not after its finished batches are used up
                iterator.refill(self._in_flight)
                produced: Produced = next(iterator)
            except Exception as error:  # torch's iterator would continue with the batch after the failed one
                closed = self._closed
                self.close()
                if closed:  # by another thread, or by a signal handler in this one
                    raise self._closed_error(waiting=True) from None
                if isinstance(error, LoaderError):
                    raise
                # Raised by torch, for example about a worker that failed before its first batch.
                lines = str(error).strip().splitlines() or ["no details"]
                what = f"{type(error).__name__}: {lines[-1]}"
                raise LoaderError("E-WORKER", what, fix="see the traceback", **self._where()) from error
            except BaseException:  # Ctrl-C: torch's iterator may not work after it
                self._stop()
                raise
            self._dispatch.note_back(produced.item)
            if produced.item.generation == self._progress.generation:
                break
            self._recycler.give_back(produced.item.slot)
        self._raise_error_of(produced)
        return self._hand_out(produced, self._slots, self._recycler)

    def ready(self) -> int:
        if self._iterator is None or self._closed:
            return 0
        return self._dispatch.count_ready()

    def describe(self) -> dict[str, object]:
        return {
            "backend": self.name,
            "workers": self._workers,
            "prefetch": self._options.prefetch,
            "start_method": self._options.start_method,
            **(self._about_slots(self._slots) if self._is_running else {}),
        }

    def worker_died(self, worker: int, pid: int, ending: str) -> LoaderError:
        """Return the error that names a dead worker and its sample."""
        row, doing, fix = self._progress.table[worker], "", None
        if not row[PID]:
            doing = " before its first sample"
            fix = _START_FIX if ending.startswith("exited") else None
        elif not row[BUSY]:
            doing = " after this sample, between two batches"
        return death_error(ending, doing, fix=fix, worker=pid, **self._where(int(row[SAMPLE])))

    def worker_silent(self, worker: int, pid: int) -> LoaderError | None:
        """Return the error for a worker without progress for `watchdog_s`, None if it has made progress."""
        if self._closed:  # by another thread, which waits for this one
            return self._closed_error(waiting=True)
        row = self._progress.table[worker]
        if not self._watchdog.has_expired(row.tobytes()):
            return None
        workers = self._iterator._workers if self._iterator is not None else ()
        return silence_error(workers, pid, self._watchdog.silent_s, **self._where(int(row[SAMPLE])))

    def close(self) -> None:
        self._closed = True
        with self._busy:
            self._stop()

    def _stop(self) -> None:
        if self._iterator is None:
            return
        iterator, self._iterator = self._iterator, None
        self._progress.next_generation()  # workers abandon their batch at its next sample
        iterator.shut_down()
        self._slots.close()
        self._progress.close()
