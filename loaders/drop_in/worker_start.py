"""Choose how the workers of the drop-in DataLoader are started, and set each of them up."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import context, queues
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
from torch._utils import ExceptionWrapper
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from penstock.loaders.system.machine import default_workers, memory_headroom
from penstock.loaders.workers.progress import BUSY, PID, SAMPLE, SINCE_NS, WorkerProgress
from penstock.loaders.workers.settle import start_worker
from penstock.pipelines.errors import LoaderError

MAIN_GUARD = 'if __name__ == "__main__":'
_MAX_DESCRIPTORS = 200  # a process is started with at most 256, and the queues need a few
_COPIES_SHARE = 4  # the workers' copies of a dataset may take one part in so many of the free memory


def drop_in_workers() -> int:
    """Return the default num_workers: one a processor; 0 in a daemonic process (a worker), which may not start any."""
    return 0 if multiprocessing.current_process().daemon else default_workers()


@dataclass(frozen=True)
class WorkerStart:
    """Serve torch as worker_init_fn: set the process up, have it report its progress, then call the user's function.

    Attributes:
        user_init: the worker_init_fn of the user, if any.
        progress: where the worker notes what it is doing.
    """

    user_init: Callable[[int], None] | None
    progress: WorkerProgress

    def __call__(self, worker_id: int) -> None:
        start_worker(worker_id)
        row = self.progress.table[worker_id]
        row[PID] = os.getpid()
        _report_samples(row)
        _report_unsendable(worker_id)
        if self.user_init is not None:
            self.user_init(worker_id)


def _report_samples(row: npt.NDArray[np.int64]) -> None:
    """Have torch note in `row`, from now on, which sample this process is at.

    What a worker has sent but nobody received is lost with it, so the parent cannot infer the sample from what is
    missing.
    """
    plain: Callable[..., Any] = _MapDatasetFetcher.fetch

    def fetch(self: Any, index: Any) -> Any:
        try:
            if self.auto_collation and not getattr(self.dataset, "__getitems__", None):
                return plain(self, _noted(index, row))
            next(iter(_noted(index if self.auto_collation else [index], row)), None)
            return plain(self, index)
        finally:
            row[BUSY] = 0

    _MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def _report_unsendable(worker_id: int) -> None:
    """Send the error in place of a batch that cannot be sent: it does not pickle, or there is no shared memory for it.

    Python's queue would print the error and drop the batch, and the parent would wait for it.
    """
    where = f"in DataLoader worker process {worker_id}, sending a batch"

    def send_error(results: Any, error: Exception, message: Any) -> None:
        if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], int):
            results.put((message[0], ExceptionWrapper(where=where)))  # type: ignore[no-untyped-call]
        else:  # not torch's
            traceback.print_exception(error)

    queues.Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def _noted(indices: Iterable[Any], row: npt.NDArray[np.int64]) -> Iterator[Any]:
    """Pass `indices` on one by one, and note in `row` which one is asked for."""
    for index in indices:
        row[SAMPLE] = index if isinstance(index, (int, np.integer)) else -1
        row[SINCE_NS], row[BUSY] = time.monotonic_ns(), 1
        yield index


def refuse_without_main_guard() -> None:
    """Raise LoaderError E-MISUSE in a new worker that imports the user's script, which would start workers again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise LoaderError(
            "E-MISUSE",
            "every worker process imports this script, and the script iterates over a DataLoader when it is imported",
            fix=f"put the lines that use the loader under `{MAIN_GUARD}`, or pass num_workers=0",
        )


def choose_context(num_workers: int, *payload: Any) -> BaseContext:
    """Return the context for workers that are handed `payload`: forkserver, which inherits no locks and no CUDA state.

    A method other than fork that the program chose by multiprocessing.set_start_method takes precedence. Where a worker
    could not receive the payload it is fork, with a RuntimeWarning that says why.
    """
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen not in (None, "fork") or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context(chosen)
    obstacle = why_not_started_clean(num_workers, *payload)
    if obstacle is not None:
        warnings.warn(
            f"DataLoader forks its workers, because {obstacle}. Forked workers can hang where a library (OpenCV, "
            "OpenMP, CUDA) has threads. Define the dataset and its functions at the top level of a module, without "
            'lambdas, or pass multiprocessing_context="fork" to accept this.',
            RuntimeWarning,
            stacklevel=5,
        )
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("forkserver")


def why_not_started_clean(num_workers: int, *payload: Any) -> str | None:
    """Return why `payload` cannot be sent to `num_workers` processes that inherit nothing; None if it can."""
    sink, start = _NullSink(), _DryStart()
    starting: Any = start
    context.set_spawning_popen(starting)  # locks and tensors consult it when they are pickled
    try:
        ForkingPickler(sink).dump(payload)
    except Exception as error:
        return f"the dataset, collate_fn or worker_init_fn does not pickle ({type(error).__name__}: {error})"
    finally:
        context.set_spawning_popen(None)
    main = sys.modules.get("__main__")
    named, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if named is None and (not os.path.exists(file) if file is not None else sink.names_main):
        return "the main script has no file that a worker could import"
    if start.num_descriptors > _MAX_DESCRIPTORS:
        return f"the dataset holds {start.num_descriptors} tensors, more than a new process can be handed"
    need, have = sink.num_bytes * num_workers, memory_headroom()
    if need * _COPIES_SHARE > have:
        return f"the workers' copies of the dataset would take {need:,} of {have:,} bytes of free memory"
    return None


class _NullSink:
    """File that drops what is written to it, but counts the bytes and notes whether they name `__main__`."""

    def __init__(self) -> None:
        self.num_bytes, self.names_main = 0, False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.num_bytes += size
        # A pickler writes whole frames, so no name is split between two writes.
        self.names_main = self.names_main or (isinstance(data, bytes) and b"__main__" in data)
        return size


class _DryStart:
    """Stands for the process being started, and counts the descriptors that it would be handed."""

    def __init__(self) -> None:
        self.num_descriptors = 0

    def duplicate_for_child(self, fd: int) -> int:
        self.num_descriptors += 1
        return fd

    def DupFd(self, fd: int) -> int:
        return fd
