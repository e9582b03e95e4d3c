"""Setup of the worker processes of the drop-in DataLoader."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import queues
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind

from penstock.loaders.drop_in import random_state
from penstock.loaders.drop_in.fetcher import RANDOM, Ended, Fetched, Fetcher, ProcessState, begin_dataset
from penstock.loaders.run.workers.worker_progress import BUSY, PID, SAMPLE, SINCE_NS, WorkerProgress
from penstock.loaders.run.workers.worker_setup import start_worker
from penstock.pipelines.errors import LoaderError

MAIN_GUARD = 'if __name__ == "__main__":'


@dataclass(frozen=True)
class WorkerStart:
    """A worker_init_fn for torch: sets up the process, reports its progress, then calls the user's function.

    Attributes:
        user_init: the user's worker_init_fn, if any.
        progress: table in which the worker records its progress.
        places: where the data set continues in each worker; empty at the start of an epoch.
        for_device: as in Fetched.
        environment: environment of the parent.
    """

    user_init: Callable[[int], None] | None
    progress: WorkerProgress
    places: tuple[ProcessState | None, ...] = ()
    for_device: bool = False
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def __call__(self, worker_id: int) -> None:
        start_worker(worker_id, self.environment)
        row = self.progress.table[worker_id]
        row[PID] = os.getpid()
        _replace_fetchers(row, self.places[worker_id] if self.places else None, self.for_device)
        _report_unsendable(worker_id)
        ignore_lost_receivers()
        if self.user_init is not None:
            self.user_init(worker_id)


class WorkerFetcher(Fetcher):
    """A fetcher that records the current sample in `row`, and sends the data set's state with each batch.

    If a worker dies, batches that it sent but the parent did not receive are lost too. So the parent cannot infer the
    sample from the missing batches. for_device: as in Fetched.
    """

    def __init__(
        self,
        plain: Any,
        resume: ProcessState | None,
        before: ProcessState,
        row: npt.NDArray[np.int64],
        for_device: bool,
    ) -> None:
        super().__init__(plain, resume, before)
        self._row, self._for_device = row, for_device
        if self._iterator is not None:
            plain.dataset_iter = _NotingIterator(self._iterator, row)

    def fetch(self, index: Any) -> Any:
        one_by_one = self.plain.auto_collation and not getattr(self.plain.dataset, "__getitems__", None)
        try:
            if self._iterator is not None:
                batch = super().fetch(index)
            elif one_by_one:
                batch = super().fetch(_note_each(index, self._row))
            else:
                _note(self._row, index[0] if isinstance(index, list) and index else index)
                batch = super().fetch(index)
        finally:
            self._row[BUSY] = 0
        state = self.state()
        start, self.start = self.start, {}
        is_plain = state is None and not self._for_device
        return batch if is_plain else Fetched(batch, state, start or None, self._for_device)


class _NotingIterator:
    def __init__(self, iterator: Iterator[object], row: npt.NDArray[np.int64]) -> None:
        self._iterator, self._row = iterator, row

    def __next__(self) -> object:
        _note(self._row, -1)
        return next(self._iterator)


def _note(row: npt.NDArray[np.int64], index: object) -> None:
    row[SAMPLE] = index if isinstance(index, (int, np.integer)) and -(1 << 63) <= index < 1 << 63 else -1
    row[SINCE_NS], row[BUSY] = time.monotonic_ns(), 1


def _note_each(indices: Iterable[object], row: npt.NDArray[np.int64]) -> Iterator[object]:
    """Yield `indices` one by one, and record in `row` which one is requested."""
    for index in indices:
        _note(row, index)
        yield index


def _replace_fetchers(row: npt.NDArray[np.int64], resume: ProcessState | None, for_device: bool) -> None:
    """Make torch use a WorkerFetcher in this process from now on; the first one continues at `resume`."""
    create = _DatasetKind.create_fetcher
    places: list[ProcessState | None] = [resume]
    fetchers: list[WorkerFetcher] = []

    def create_noted(kind: int, dataset: object, *rest: object) -> WorkerFetcher:
        is_later = not places  # a later epoch, which continues with the generators of the previous one
        place = (places.pop() if places else None) or {}
        random_state.restore(place.get(RANDOM, {}), {})
        now = random_state.capture({}) if is_later and kind == _DatasetKind.Iterable else {}
        before = begin_dataset(dataset, place)
        plain = create(kind, dataset, *rest)  # type: ignore[no-untyped-call]
        fetchers[:] = [WorkerFetcher(plain, place, before, row, for_device)]
        if now and not fetchers[0].start:
            fetchers[0].start = {RANDOM: now}
        return fetchers[0]

    def end(worker_id: int) -> Ended:
        state = fetchers[0].state(ended=True)
        # The next epoch of this process continues with these states of the generators.
        return Ended(worker_id, {RANDOM: random_state.capture({})} if state is None else state)

    _DatasetKind.create_fetcher = staticmethod(create_noted)  # type: ignore[method-assign]
    torch_worker._IterableDatasetStopIteration = end  # type: ignore[assignment,misc]


def _report_unsendable(worker_id: int) -> None:
    """Send the error instead of a batch that cannot be sent: it cannot be pickled, or shared memory is full.

    Python's queue would print the error and drop the batch, and the parent would wait for it.
    """
    where = f"in DataLoader worker process {worker_id}, sending a batch"

    def send_error(results: Any, error: Exception, message: object) -> None:
        if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], int):
            results.put((message[0], ExceptionWrapper(where=where)))  # type: ignore[no-untyped-call]
        else:  # not a message of torch
            traceback.print_exception(error)

    queues.Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def ignore_lost_receivers() -> None:
    """Make this process silent about a parent that ends while it fetches the memory of a batch.

    Python's thread that sends descriptors (multiprocessing.resource_sharer) reports such an error through
    sys.excepthook. A parent that still runs gets an error of its own.
    """
    report = sys.excepthook

    def report_others(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_main = threading.current_thread() is threading.main_thread()  # other threads use threading.excepthook
        if is_main or not isinstance(error, (EOFError, ConnectionError)):
            report(kind, error, trace)

    sys.excepthook = report_others


def refuse_without_main_guard() -> None:
    """Raise LoaderError E-MISUSE in a new worker that imports the user's script, which would start workers again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise LoaderError(
            "E-MISUSE",
            "every worker process imports this script, but the script iterates over a DataLoader when it is imported",
            fix=f"put the lines that use the loader under `{MAIN_GUARD}`, or pass num_workers=0",
        )
