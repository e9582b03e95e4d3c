"""Encodes the images of a source for a cache in worker processes, and hands them out in the order of the source."""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, current_process
from typing import Any, NoReturn

import numpy as np

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache_encode.chunks import FIRST_CHUNK_SAMPLES, Chunk, ChunkCutter, Task, encode_chunk
from penstock.loaders.cache_encode.encode import SampleEncoder
from penstock.loaders.sources.contract import Source
from penstock.loaders.system.machine import ensure_descriptors, oom_kills
from penstock.loaders.system.needs import SEMAPHORES, ensure_dev_shm
from penstock.loaders.system.shared_memory import SharedArray
from penstock.loaders.workers.launch import deferred_signals, start_error, without_main, worker_context
from penstock.loaders.workers.processes import describe_exit, tell_stacks
from penstock.loaders.workers.settle import OUTLASTED, start_worker
from penstock.loaders.workers.watchdog import DEFAULT_WATCHDOG_S, POLL_S, Watchdog
from penstock.pipelines.errors import LoaderError

_AHEAD = 3  # chunks a worker that are handed out or wait for their turn to be written: bounds the memory they take
_LEAVE_S = 5.0  # longer than a killed process takes to go
_DESCRIPTORS, _DESCRIPTORS_A_WORKER = 16, 6
_SEMAPHORE_BYTES = 5 * 4096  # of the executor's queues, in /dev/shm
_SAMPLE, _PID = 0, 1  # columns of the table of what each task is at


def encode_in_order(
    source: Source, encoding: Encoding, first: int, end: int, workers: int
) -> Generator[Chunk, None, None]:
    """Encode samples `first` to `end` (excluded) in chunks, in order, by `workers` processes or, if 0, in this one.

    How they are cut into chunks differs from run to run; their bytes do not. Close the iterator to end the workers.
    Raises what the source raises (LoaderError, with `sample`); LoaderError E-WORKER, E-OOM, E-TIMEOUT for a worker
    that died or hangs.
    """
    workers = min(workers, -(-(end - first) // FIRST_CHUNK_SAMPLES))
    if workers and current_process().daemon:
        workers = 0  # a worker itself: it may not start any
    cutter = ChunkCutter(first, end)
    return _encode_in_workers(source, encoding, cutter, workers) if workers else _encode_here(source, encoding, cutter)


def _encode_here(source: Source, encoding: Encoding, cutter: ChunkCutter) -> Generator[Chunk, None, None]:
    encoder = SampleEncoder(encoding)
    while cutter.more:
        chunk = encode_chunk(source, encoder, cutter.cut(), lambda sample: None)
        cutter.learn(chunk)
        yield chunk


def _encode_in_workers(
    source: Source, encoding: Encoding, cutter: ChunkCutter, workers: int
) -> Generator[Chunk, None, None]:
    pool = _Pool(source, encoding, workers)
    try:
        in_flight: deque[Future[Chunk]] = deque()
        while cutter.more or in_flight:
            while cutter.more and len(in_flight) < _AHEAD * workers:
                in_flight.append(pool.submit(cutter.cut()))
            chunk = pool.result(in_flight.popleft())
            cutter.learn(chunk)
            yield chunk
    finally:
        pool.close()


class _Pool:
    """Worker processes of an executor, watched by this process while it waits for a chunk.

    The executor's own watch is not enough: it waits for ever for the rest of a message whose sender was killed or
    stopped, and it says neither who died of what nor at which sample.
    """

    def __init__(self, source: Source, encoding: Encoding, workers: int) -> None:
        self._source = source
        self._oom_kills = oom_kills()
        self._num_tasks = 0
        ensure_descriptors(_DESCRIPTORS + _DESCRIPTORS_A_WORKER * workers)
        ensure_dev_shm(_SEMAPHORE_BYTES, SEMAPHORES)
        self._at = SharedArray.create((_AHEAD * workers, 2), np.int64, name="penstock-build")
        self._at.array[:] = -1
        try:
            context = worker_context("forkserver")
            self._executor = ProcessPoolExecutor(workers, context, start_encoding, (source, encoding, self._at))
        except BaseException as error:
            self._at.close()
            _raise_start_error(error)
        # No public name leads to these. They are the same from Python 3.9 on, and the tests hold them.
        self._processes: dict[int, Any] = self._executor._processes  # type: ignore[assignment]
        self._results: Any = self._executor._result_queue

    def submit(self, task: Task) -> Future[Chunk]:
        """Hand out a task, for which the executor starts another worker while there are fewer than it may have."""
        row = self._num_tasks % len(self._at.array)
        self._num_tasks += 1
        try:
            with without_main(self._source), deferred_signals():
                return self._executor.submit(_encode_task, task, row)
        except BrokenProcessPool:
            raise self._lost() from None
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            kind = type(self._source).__name__
            raise ValueError(f"{kind} does not go to worker processes ({error}): build with workers=0") from error
        except BaseException as error:
            _raise_start_error(error)

    def result(self, future: Future[Chunk]) -> Chunk:
        """Wait for a chunk. Raises what stopped its worker, or any worker."""
        watchdog = Watchdog(DEFAULT_WATCHDOG_S)
        while not wait([future], POLL_S).done:
            if self._ended(0):
                raise self._lost()
            if watchdog.expired(self._at.array.tobytes()):
                raise self._silent()
        try:
            return future.result()
        except BrokenProcessPool:
            raise self._lost() from None
        except LoaderError as error:
            if error.code != "E-DATASET":  # whose cause is the traceback in the worker
                error.__cause__ = None
            raise

    def _ended(self, timeout_s: float) -> list[Any]:
        """Return the workers that run no more, one of them waited for; their exit codes are the executor's to read."""
        workers = list(self._processes.values())
        gone = connection.wait([worker.sentinel for worker in workers], timeout_s)
        return [worker for worker in workers if worker.sentinel in gone]

    def _sample(self, pid: int | None) -> int | None:
        """Return the sample that a worker is at, or was at last: tasks are handed out in order."""
        rows = self._at.array
        samples = rows[rows[:, _PID] == pid, _SAMPLE]
        return int(samples.max()) if len(samples) else None

    def _lost(self) -> LoaderError:
        """End the others, and say how and where the first worker ended."""
        ended = self._ended(_LEAVE_S)
        where: dict[str, Any] = {}
        if ended:
            where = {"sample": self._sample(ended[0].pid), "worker": ended[0].pid}
        self.close()
        how = describe_exit(ended[0].exitcode) if ended else "lost"
        cause = f"a worker process was {how}".replace("was exited", "exited")
        if oom_kills() > self._oom_kills:
            fix = "lower workers, or give it more memory"
            return LoaderError("E-OOM", f"{cause}: out of memory", fix=fix, **where)
        return LoaderError("E-WORKER", cause, **where)

    def _silent(self) -> LoaderError:
        workers = list(self._processes.values())
        tell_stacks(workers, workers[0].pid)
        samples = ", ".join(str(self._sample(worker.pid)) for worker in workers)
        cause = f"no worker has answered for {DEFAULT_WATCHDOG_S:.0f} s; they are at the samples {samples}"
        return LoaderError("E-TIMEOUT", cause, fix="look at these files: slow or dead storage")

    def close(self) -> None:
        """End the workers and the executor's threads. Idempotent."""
        for worker in self._processes.values():
            worker.kill()  # they hold nothing that must be written, and might never leave by themselves
        # The executor's thread may be in the middle of a message; with the last writer gone, it finds its end.
        self._results._writer.close()
        self._executor.shutdown(cancel_futures=True)
        for worker in self._processes.values():
            worker.join(_LEAVE_S)
        self._at.close()


def _raise_start_error(error: BaseException) -> NoReturn:
    """Raise what `error` means where worker processes are started."""
    meant = start_error(error)
    if meant is error:
        raise error
    raise meant from error


# What a worker process encodes with, set when it starts.
_source: Any = None
_encoding = Encoding()
_encoder: SampleEncoder | None = None
_at: Any = None


def start_encoding(source: Source, encoding: Encoding, at: SharedArray) -> None:
    """Settle a new worker process. The fork server knows by this function that the process unblocks its signals."""
    global _source, _encoding, _at
    start_worker(0)
    for number in OUTLASTED:
        # What a worker starts inherits this, or an image would be stored as one that jpegtran cannot take.
        signal.signal(number, signal.SIG_IGN)
    _source, _encoding, _at = source, encoding, at.array


def _encode_task(task: Task, row: int) -> Chunk:
    """Encode a task in a worker process, which says in `row` of the table where it is. Raises LoaderError alone."""
    global _encoder
    worker = os.getpid()

    def working_on(sample: int) -> None:
        _at[row] = sample, worker

    try:
        _encoder = _encoder or SampleEncoder(_encoding)
        return encode_chunk(_source, _encoder, task, working_on)
    except LoaderError as error:
        raise error.located(worker=worker) from None
    except MemoryError as error:
        cause = f"out of memory at this sample ({str(error) or 'no details'})"
        raise LoaderError("E-MEM", cause, sample=_sample_at(row), worker=worker) from None
    except Exception as error:
        fix = "see the traceback; with workers=0 a debugger stops there"
        cause = f"{type(error).__name__}: {error}"
        raise LoaderError("E-DATASET", cause, fix=fix, sample=_sample_at(row), worker=worker) from error
    except SystemExit as left:  # the executor would hand it to the builder, which has no reason to leave
        os._exit(left.code if isinstance(left.code, int) else 1)


def _sample_at(row: int) -> int | None:
    sample = int(_at[row, _SAMPLE])
    return sample if sample >= 0 else None
