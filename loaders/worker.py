"""What runs in a worker process of the torch backend: one batch for each work item."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from penstock.loaders.contract import BadSample, Cursor
from penstock.loaders.producer import Aborted, Producer, ProducerSettings
from penstock.loaders.shared_memory import SharedArray
from penstock.loaders.slots import BatchSlots
from penstock.pipelines.errors import LoaderError

_PR_SET_PDEATHSIG = 1
STACK_SIGNAL = signal.SIGUSR1  # makes a worker print its stack to stderr
# One row a worker, and a last one for the parent: sample in work or the latest, nanoseconds when begun, batches made,
# process id, 1 while it makes a batch.
SAMPLE, SINCE_NS, MADE, PID, BUSY = range(5)


class WorkItem(NamedTuple):
    """One batch to make: where in the stream, into which slot; stale once the generation has moved on."""

    generation: int
    cursor: Cursor
    slot: int


class Produced(NamedTuple):
    """The small message that goes back; the batch itself lies in the slot.

    error: what stopped it, if anything. trace: the traceback of an exception that is not ours.
    """

    item: WorkItem
    bad: tuple[BadSample, ...]
    produce_s: float
    done: bool
    error: LoaderError | None
    trace: str = ""


class WorkerTraceback(Exception):
    """The text of a traceback in a worker process: what an error that is raised here was caused by."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"\n{trace}")


class Progress:
    """Shared table of what each worker is doing, readable whatever state the worker is in."""

    def __init__(self, workers: int, *, shared: bool) -> None:
        self._shared = SharedArray.create((workers + 1, 5), np.int64, name="penstock-progress") if shared else None
        self.table = self._shared.array if self._shared else np.zeros((workers + 1, 5), np.int64)
        self.table[:, SAMPLE] = -1

    @property
    def generation(self) -> int:
        """The generation of work that is still wanted."""
        return int(self.table[-1, MADE])

    def next_generation(self) -> int:
        """Declare all work that was handed out so far unwanted."""
        self.table[-1, MADE] += 1
        return self.generation

    def __getstate__(self) -> SharedArray:
        assert self._shared is not None
        return self._shared

    def __setstate__(self, shared: SharedArray) -> None:
        self._shared, self.table = shared, shared.array

    def close(self) -> None:
        """Let go of the shared memory."""
        if self._shared:
            self._shared.close()


class SlotDataset(Dataset[Produced]):
    """A map-style dataset whose keys are work items and whose values are messages about filled slots."""

    def __init__(self, settings: ProducerSettings, slots: BatchSlots, progress: Progress) -> None:
        self._settings, self._slots, self._progress = settings, slots, progress
        self._producer: Producer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_producer": None}  # decoders are made where they are used

    def __getitem__(self, item: WorkItem) -> Produced:
        info = get_worker_info()
        mine = self._progress.table[info.id if info else 0]

        def working_on(sample: int) -> None:
            mine[SAMPLE], mine[SINCE_NS] = sample, time.monotonic_ns()
            if self._progress.generation != item.generation:
                raise Aborted

        mine[BUSY] = 1
        try:
            if self._producer is None:
                mine[PID] = os.getpid()
                self._producer = Producer(self._settings)
            pixels, rows = self._slots.pixels[item.slot], self._slots.rows[item.slot]
            bad, seconds = self._producer.produce(item.cursor, pixels, rows, working_on)
            mine[MADE] += 1
            produced = Produced(item, bad, seconds, True, None)
        except Aborted:
            produced = Produced(item, (), 0.0, False, None)
        except Exception as error:
            produced = self._stopped(item, error, int(mine[SAMPLE]))
        # Not in a finally: whoever ends a worker by other means is to find what it had in hand.
        mine[BUSY] = 0
        return produced

    def _stopped(self, item: WorkItem, error: Exception, sample: int) -> Produced:
        """What is said of an exception: the source's own, unless it is one of ours."""
        worker = os.getpid() if get_worker_info() else None
        if isinstance(error, LoaderError):
            ours = error.located(worker=worker)
            ours.__cause__ = error.__cause__
            return Produced(item, (), 0.0, False, ours)
        path = None
        with contextlib.suppress(Exception):
            path = self._settings.source.path(sample)
        where: dict[str, Any] = {"sample": sample if sample >= 0 else None, "path": path, "worker": worker}
        if isinstance(error, MemoryError):
            told = LoaderError("E-MEM", f"out of memory at this sample ({str(error) or 'no details'})", **where)
        else:
            fix = "see the traceback; with workers=0 a debugger stops there"
            told = LoaderError("E-DATASET", f"{type(error).__name__}: {error}", fix=fix, **where)
        told.__cause__ = error  # in the consumer's own process; a message carries no causes
        trace = traceback.format_exc() if worker else ""
        return Produced(item, (), 0.0, False, told, trace)


def start_worker(worker_id: int) -> None:
    """Settle a new worker: it ends with its parent, leaves Ctrl-C to it, uses one thread, can tell its stack."""
    del worker_id
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    _end_with_parent()
    torch.set_num_threads(1)
    cv2 = sys.modules.get("cv2")  # a user's source may have brought it along
    if cv2 is not None:
        cv2.setNumThreads(0)
    gc.freeze()  # the collector need not walk all that torch has imported again and again: 1 to 2 % of a worker's time


def _end_with_parent() -> None:
    """Leave no orphan, whatever ends the parent.

    A fork server stays while its workers do (each holds the pipe that keeps it alive), and torch's own watch looks at
    the server. So a thread waits for the parent's end of this process's pipe to close.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if os.getppid() != parent.pid:  # a child of the fork server: it ends with that as well
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name="penstock-parent", daemon=True).start()
