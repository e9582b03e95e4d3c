"""What runs in a worker process of the torch backend: one batch for each work item."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
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
# One row a worker, and a last one for the parent: sample in work, nanoseconds when begun, batches made, process id.
SAMPLE, SINCE_NS, MADE, PID = range(4)


class WorkItem(NamedTuple):
    """One batch to make: where in the stream, into which slot; stale once the generation has moved on."""

    generation: int
    cursor: Cursor
    slot: int


class Produced(NamedTuple):
    """The small message that goes back; the batch itself lies in the slot. `error` is what stopped it, if anything."""

    item: WorkItem
    bad: tuple[BadSample, ...]
    produce_s: float
    done: bool
    error: LoaderError | None


class Progress:
    """Shared table of what each worker is doing, readable whatever state the worker is in."""

    def __init__(self, workers: int, *, shared: bool) -> None:
        self._shared = SharedArray.create((workers + 1, 4), np.int64, name="penstock-progress") if shared else None
        self.table = self._shared.array if self._shared else np.zeros((workers + 1, 4), np.int64)
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

        try:
            if self._producer is None:
                mine[PID] = os.getpid()
                self._producer = Producer(self._settings)
            pixels, rows = self._slots.pixels[item.slot], self._slots.rows[item.slot]
            bad, seconds = self._producer.produce(item.cursor, pixels, rows, working_on)
        except Aborted:
            return Produced(item, (), 0.0, False, None)
        except LoaderError as error:
            return Produced(item, (), 0.0, False, error.located(worker=os.getpid()))
        except MemoryError:
            sample = int(mine[SAMPLE])
            short = LoaderError("E-MEM", "out of memory in a worker", sample=sample, worker=os.getpid())
            return Produced(item, (), 0.0, False, short)
        finally:
            mine[SAMPLE] = -1
        mine[MADE] += 1
        return Produced(item, bad, seconds, True, None)


def start_worker(worker_id: int) -> None:
    """Settle a new worker: it dies with its parent, leaves Ctrl-C to it, uses one thread, can tell its stack."""
    del worker_id
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)
    torch.set_num_threads(1)
    cv2 = sys.modules.get("cv2")  # a user's source may have brought it along
    if cv2 is not None:
        cv2.setNumThreads(0)
