"""How the workers of the drop-in DataLoader are started, and what each of them does first."""

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
from penstock.loaders.workers.progress import BUSY, PID, SAMPLE, SINCE_NS, Progress
from penstock.loaders.workers.settle import start_worker
from penstock.pipelines.errors import LoaderError

MAIN_GUARD = 'if __name__ == "__main__":'
_MAX_DESCRIPTORS = 200  # one start passes at most 256, and the queues need a few
_COPIES_SHARE = 4  # the workers' copies of a dataset may take one part in so many of the free memory


def workers_unless_told() -> int:
    """One worker a processor; none in a daemonic process (a worker itself), which may not start any."""
    return 0 if multiprocessing.current_process().daemon else default_workers()


@dataclass(frozen=True)
class WorkerStart:
    """The worker_init_fn that torch is given: settles the process, lets its progress be seen, then calls the user's."""

    user_init: Callable[[int], None] | None
    progress: Progress

    def __call__(self, worker_id: int) -> None:
        start_worker(worker_id)
        row = self.progress.table[worker_id]
        row[PID] = os.getpid()
        _tell_samples(row)
        _tell_unsendable(worker_id)
        if self.user_init is not None:
            self.user_init(worker_id)


def _tell_samples(row: npt.NDArray[np.int64]) -> None:
    """Write down in `row`, from now on, which sample this process is at.

    What a worker has sent is lost with it if it has not been received, so the parent cannot tell from what is missing.
    """
    plain: Callable[..., Any] = _MapDatasetFetcher.fetch

    def fetch(self: Any, index: Any) -> Any:
        try:
            if self.auto_collation and not getattr(self.dataset, "__getitems__", None):
                return plain(self, _told(index, row))
            next(iter(_told(index if self.auto_collation else [index], row)), None)
            return plain(self, index)
        finally:
            row[BUSY] = 0

    _MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def _tell_unsendable(worker_id: int) -> None:
    """Send the error in place of a batch that cannot be sent: it does not pickle, or there is no shared memory for it.

    Python's queue prints the error and drops the batch, for which the parent would wait.
    """
    where = f"in DataLoader worker process {worker_id}, sending a batch"

    def send_error(results: Any, error: Exception, message: Any) -> None:
        if isinstance(message, tuple) and len(message) == 2 and isinstance(message[0], int):
            results.put((message[0], ExceptionWrapper(where=where)))  # type: ignore[no-untyped-call]
        else:  # not torch's
            traceback.print_exception(error)

    queues.Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def _told(indices: Iterable[Any], row: npt.NDArray[np.int64]) -> Iterator[Any]:
    for index in indices:
        row[SAMPLE] = index if isinstance(index, (int, np.integer)) else -1
        row[SINCE_NS], row[BUSY] = time.monotonic_ns(), 1
        yield index


def refuse_without_main_guard() -> None:
    """Raises LoaderError E-MISUSE in a new worker that runs the user's script, which would start workers again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise LoaderError(
            "E-MISUSE",
            "every worker process imports this script, and the script iterates over a DataLoader when it is imported",
            fix=f"put the lines that use the loader under `{MAIN_GUARD}`, or pass num_workers=0",
        )


def choose_context(num_workers: int, *payload: Any) -> BaseContext:
    """The start method for workers that are handed `payload`: forkserver, which inherits no locks and no CUDA state.

    A method other than fork that the program chose by multiprocessing.set_start_method is kept. Where a worker could
    not receive the payload it is fork, with a RuntimeWarning that says why.
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
    """What stands in the way of sending `payload` to `num_workers` processes that inherit nothing, if anything does."""
    sink, start = _NullSink(), _DryStart()
    starting: Any = start
    context.set_spawning_popen(starting)  # what locks and tensors ask for when they are pickled for a new process
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
    """A file that keeps nothing of what is written to it but its size, and whether something of `__main__` is meant."""

    def __init__(self) -> None:
        self.num_bytes, self.names_main = 0, False

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.num_bytes += size
        # A pickler writes whole frames: a name is never cut in two.
        self.names_main = self.names_main or (isinstance(data, bytes) and b"__main__" in data)
        return size


class _DryStart:
    """Stands for the process being started: counts the descriptors it would be handed."""

    def __init__(self) -> None:
        self.num_descriptors = 0

    def duplicate_for_child(self, fd: int) -> int:
        self.num_descriptors += 1
        return fd

    def DupFd(self, fd: int) -> int:
        return fd
