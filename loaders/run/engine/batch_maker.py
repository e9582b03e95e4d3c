"""BatchMaker: makes batches in a worker process or thread, one message per work item."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable

from torch.utils.data import Dataset, get_worker_info

from penstock.loaders.data.sources.source_faults import name_sample
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.producer import Aborted, Producer
from penstock.loaders.order.ledger import BadSample
from penstock.loaders.run.engine.slots import BatchSlots
from penstock.loaders.run.engine.work_items import Produced, WorkItem
from penstock.loaders.run.workers.failures import exception_error
from penstock.loaders.run.workers.worker_progress import (
    BUSY,
    MADE,
    PID,
    SAMPLE,
    SINCE_NS,
    WorkerProgress,
    WorkerTraceback,
)
from penstock.pipelines.errors import hide_secrets
from penstock.pipelines.messages.user_warnings import collect_warnings


class BatchMaker(Dataset[Produced]):
    """A maker of batches for one worker.

    Worker processes belong to a torch DataLoader. For the DataLoader it is a map-style data set: the keys are work
    items, the values are messages about filled slots.

    Args:
        worker: row of this worker in the progress table; None for the id of torch's worker process.
        make_producer: makes the Producer that fills the slots.
    """

    def __init__(
        self,
        planner: BatchPlanner,
        slots: BatchSlots,
        progress: WorkerProgress,
        worker: int | None = None,
        make_producer: Callable[[BatchPlanner], Producer] = Producer,
    ) -> None:
        self._planner, self._slots, self._progress = planner, slots, progress
        self._worker, self._make_producer = worker, make_producer
        self._process: int | None = None  # id of the worker process, None in the consumer's
        self._producer: Producer | None = None  # made in the worker, because decoders cannot be pickled

    @property
    def sample(self) -> int:
        """Return the sample that is being made, or the latest one."""
        return int(self._progress.table[self._worker or 0, SAMPLE])

    def make(self, item: WorkItem) -> Produced:
        """Fill the slot of `item` and return the message. Errors and warnings are part of it; none are raised."""
        with collect_warnings() as warned:
            produced = self._make(item)
        return produced._replace(warned=tuple(warned.items())) if warned else produced

    def _make(self, item: WorkItem) -> Produced:
        if self._worker is None:
            info = get_worker_info()
            assert info is not None
            self._worker, self._process = info.id, os.getpid()
        mine = self._progress.table[self._worker]

        def working_on(sample: int) -> None:
            mine[SAMPLE], mine[SINCE_NS] = sample, time.monotonic_ns()
            if self._progress.generation != item.generation:
                raise Aborted

        mine[BUSY] = 1
        try:
            if self._producer is None:
                mine[PID] = os.getpid()
                self._producer = self._make_producer(self._planner)
            memory, rows = self._slots.memory[item.slot], self._slots.rows[item.slot]
            watched, started = self._progress.addresses(self._worker, item.generation), time.perf_counter()
            which = item.part, item.parts
            made = self._producer.produce(item.cursor, memory, rows, working_on, watched, which)
            bad = made.in_batch(made.bad)
            produced = Produced(
                item,
                bad=bad if self._process is None else tuple(map(_sendable, bad)),
                tasks=made.tasks,
                produce_s=time.perf_counter() - started,
                read_s=made.read_s,
                repaired=made.in_batch(made.repaired),
                moved=made.moved,
                augments=made.content.augments,
            )
        except Aborted:
            produced = Produced(item)
        except Exception as error:
            sample = int(mine[SAMPLE])
            path = name_sample(self._planner.source, sample) or None
            produced = Produced(item, *exception_error(error, sample, path=path, worker=self._process))
        # Not in a finally: if something else ends the worker, its row must still show that it was busy, and its sample.
        mine[BUSY] = 0
        mine[MADE] += 1
        return produced

    __getitem__ = make  # called by torch's workers


def _sendable(bad: BadSample) -> BadSample:
    """Return a bad sample that can be sent to another process, with the text of its exception, which may not pickle."""
    if bad.raised is None:
        return bad
    return bad._replace(raised=WorkerTraceback(hide_secrets("".join(traceback.format_exception(bad.raised)))))
