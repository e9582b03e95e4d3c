"""A map over items in watched worker processes, with results in order and a limited number of them ahead."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterator
from multiprocessing import current_process
from typing import Any, Generic, NamedTuple, TypeVar

from torch.utils.data import Dataset, get_worker_info

from penstock.loaders.run.workers.failures import death_error, exception_error, silence_error
from penstock.loaders.run.workers.leftovers import sweep
from penstock.loaders.run.workers.needs import ensure_children
from penstock.loaders.run.workers.watch import start_workers
from penstock.loaders.run.workers.worker_progress import (
    DEFAULT_WATCHDOG_S,
    MADE,
    PID,
    SAMPLE,
    Watchdog,
    WorkerProgress,
    WorkerTraceback,
    outlast_retries,
)
from penstock.loaders.run.workers.worker_setup import OUTLASTED
from penstock.loaders.system.machine import ensure_descriptors
from penstock.pipelines.errors import LoaderError

_AHEAD = 3  # items per worker: two in progress, and one with a result that waits for its turn
_DESCRIPTORS_PER_WORKER = 16

Item = TypeVar("Item")
Result = TypeVar("Result")
# Called with an item, and with a function to report each sample that it begins.
Work = Callable[[Item, Callable[[int], None]], Result]


def map_in_workers(
    work: Work[Item, Result], items: Iterator[Item], workers: int, *, source: object = None
) -> Generator[Result, None, None]:
    """Yield work(item, working_on) for each item, in order; close the generator to end the workers.

    `items` are drawn when workers take them, at most _AHEAD per worker before their results are needed. workers: number
    of processes, 0 for none. source: the source that `work` reads, if the user's script may define its class.
    Raises the exceptions of `work` (LoaderError, with `sample`, from a worker); LoaderError E-WORKER, E-OOM or
    E-TIMEOUT for a worker that died or does not make progress; ValueError for work that cannot be sent to processes.
    """
    sweep()  # remove the files of a run that was killed with all of its processes
    if workers == 0 or current_process().daemon:  # a worker itself may not start any
        for item in items:
            yield work(item, lambda sample: None)
        return
    with _Pool(work, items, workers, source) as pool:
        while (answer := pool.next_answer()) is not None:
            if answer.error is not None:
                raise answer.error from (WorkerTraceback(answer.trace) if answer.trace else None)
            yield answer.result


class _Answer(NamedTuple):
    result: Any
    error: LoaderError | None = None
    trace: str = ""


class _Runner(Dataset[_Answer], Generic[Item, Result]):
    """The work in a worker, as a data set: its keys are items, its values are answers."""

    def __init__(self, work: Work[Item, Result], progress: WorkerProgress) -> None:
        self._work, self._progress = work, progress

    def __getitem__(self, item: Item) -> _Answer:
        info = get_worker_info()
        assert info is not None
        row = self._progress.table[info.id]
        if not row[PID]:
            row[PID] = os.getpid()
            for number in OUTLASTED:
                # Programs started by the work inherit this, like SIG_IGN for Ctrl-C.
                signal.signal(number, signal.SIG_IGN)

        def working_on(sample: int) -> None:
            row[SAMPLE] = sample

        try:
            result = self._work(item, working_on)
        except Exception as error:
            return _Answer(None, *exception_error(error, int(row[SAMPLE]), worker=os.getpid()))
        row[MADE] += 1
        return _Answer(result)


class _Pool:
    """The workers, as a context manager that ends them."""

    def __init__(self, work: Work[Item, Result], items: Iterator[Item], workers: int, source: object) -> None:
        self._progress = WorkerProgress(workers, shared=True)
        self._watchdog = Watchdog(outlast_retries(DEFAULT_WATCHDOG_S, source))
        ensure_children()
        ensure_descriptors(_DESCRIPTORS_PER_WORKER * workers)
        try:
            self._iterator = start_workers(
                _Runner(work, self._progress),
                items,
                workers,
                _AHEAD,
                self.describe_death,
                self.describe_silence,
                source=self if source is None else source,
            )
        except BaseException as error:
            self._progress.close()
            if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)):
                kind = type(work if source is None else source).__name__
                raise ValueError(f"{kind} cannot be sent to worker processes ({error}): pass workers=0") from error
            raise

    def next_answer(self) -> _Answer | None:
        """Wait for the answer to the next item; None after the last. Raises LoaderError for a lost worker."""
        self._iterator.raise_if_dead()
        self._watchdog.restart()
        answer: _Answer | None = next(self._iterator, None)
        return answer

    def describe_death(self, worker: int, pid: int, ending: str) -> LoaderError:
        """Return the error that names a dead worker and its sample."""
        return death_error(ending, worker=pid, sample=self._sample(worker))

    def describe_silence(self, worker: int, pid: int) -> LoaderError | None:
        """Return the error for a worker without progress; None if the silence is not too long yet."""
        if not self._watchdog.has_expired(self._progress.table[worker].tobytes()):
            return None
        fix = "check this file: its storage is slow or has failed"
        workers = self._iterator._workers
        return silence_error(workers, pid, self._watchdog.silent_s, fix=fix, sample=self._sample(worker))

    def _sample(self, worker: int) -> int | None:
        sample = int(self._progress.table[worker, SAMPLE])
        return sample if sample >= 0 else None

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # the workers' remaining work is not needed
            self._iterator.grace_s = 0.0
        self._iterator.shut_down()
        self._progress.close()
