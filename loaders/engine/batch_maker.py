"""One batch at a time for a worker, process or thread: the work item, what comes back, who does what."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from typing import Any

from penstock.loaders.engine.producer import Aborted, MakeTask, Producer, ProducerSettings
from penstock.loaders.engine.slots import BatchSlots, Produced, WorkItem
from penstock.loaders.workers.progress import BUSY, MADE, PID, SAMPLE, SINCE_NS, Progress
from penstock.pipelines.errors import LoaderError


class BatchMaker:
    """Makes batches for one worker; belongs to one thread.

    own_process: whether the worker is a process of its own.
    make_task: see Producer.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        slots: BatchSlots,
        progress: Progress,
        worker: int,
        *,
        own_process: bool,
        make_task: MakeTask | None = None,
    ) -> None:
        self._settings, self._slots, self._progress = settings, slots, progress
        self._mine = progress.table[worker]
        self._own_process = own_process
        self._make_task = make_task
        self._producer: Producer | None = None

    @property
    def sample(self) -> int:
        """The sample in work, or the latest."""
        return int(self._mine[SAMPLE])

    def make(self, item: WorkItem) -> Produced:
        """Fill the slot of `item`; what goes wrong is told in the message, not raised."""
        mine = self._mine

        def working_on(sample: int) -> None:
            mine[SAMPLE], mine[SINCE_NS] = sample, time.monotonic_ns()
            if self._progress.generation != item.generation:
                raise Aborted

        mine[BUSY] = 1
        try:
            if self._producer is None:
                mine[PID] = os.getpid()
                self._producer = Producer(self._settings, self._make_task)
            pixels, rows = self._slots.pixels[item.slot], self._slots.rows[item.slot]
            producer = self._producer
            bad, seconds = producer.produce(item.cursor, pixels, rows, working_on)
            mine[MADE] += 1
            tasks = tuple(producer.tasks.items())
            produced = Produced(item, bad, seconds, True, None, tasks=tasks, read_s=producer.read_s)
        except Aborted:
            produced = Produced(item, (), 0.0, False, None)
        except Exception as error:
            produced = self._stopped(item, error, int(mine[SAMPLE]))
        # Not in a finally: whoever ends a worker by other means is to find what it had in hand.
        mine[BUSY] = 0
        return produced

    def _stopped(self, item: WorkItem, error: Exception, sample: int) -> Produced:
        """What is said of an exception: the source's own, unless it is one of ours."""
        worker = os.getpid() if self._own_process else None
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
