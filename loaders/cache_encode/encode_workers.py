"""Encodes the images of a source for a cache in worker processes, and hands them out in the order of the source.

Not by concurrent.futures: the semaphores of its queues have names in /dev/shm, which stay there where a whole group of
processes is killed. Its processes also share one pipe, in which the rest of a message is waited for though its sender
is dead.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Generator
from multiprocessing import connection, current_process
from typing import Any

import numpy as np

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache_encode.chunks import FIRST_CHUNK_SAMPLES, Chunk, ChunkCutter, Task, encode_chunk
from penstock.loaders.cache_encode.encode import SampleEncoder
from penstock.loaders.sources.contract import Source
from penstock.loaders.system.machine import ensure_descriptors, oom_kills
from penstock.loaders.system.shared_memory import SharedArray
from penstock.loaders.workers.failures import death_error, exception_error
from penstock.loaders.workers.launch import deferred_signals, start_error, without_main, worker_context
from penstock.loaders.workers.messages import watch_connection
from penstock.loaders.workers.needs import ensure_children
from penstock.loaders.workers.processes import describe_exit, kill, kill_at_exit, print_stacks
from penstock.loaders.workers.settle import OUTLASTED, start_worker
from penstock.loaders.workers.watchdog import DEFAULT_WATCHDOG_S, POLL_S
from penstock.loaders.workers.worker_progress import WorkerTraceback
from penstock.pipelines.errors import LoaderError

_AHEAD = 3  # chunks a worker: two handed out, one waiting for its turn to be written
_LEAVE_S = 5.0
_DESCRIPTORS_A_WORKER = 6


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
    with _Pool(source, encoding, workers) as pool:
        order: list[int] = []  # first samples of the tasks that are handed out or done, in order
        done: dict[int, Chunk] = {}
        while cutter.more or order:
            while cutter.more and len(order) < _AHEAD * workers and pool.has_room():
                task = cutter.cut()
                order.append(task.first)
                pool.hand_out(task)
            while order and order[0] not in done:
                chunk = pool.receive()
                cutter.learn(chunk)
                done[chunk.task.first] = chunk
                if cutter.more and len(order) < _AHEAD * workers:
                    break  # the worker that has just become free comes first
            if order and order[0] in done:
                yield done.pop(order.pop(0))


class _Pool:
    """Run worker processes with a pipe each: nobody else holds its other end, so no message is waited for in vain."""

    def __init__(self, source: Source, encoding: Encoding, workers: int) -> None:
        self._at = SharedArray.create((workers,), np.int64, name="penstock-build")
        self._at.array[:] = -1
        self._oom_kills = oom_kills()
        self._silent_s = 0.0
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection[Any, Any]] = []
        self._held: list[int] = []  # tasks that each worker has
        kill_at_exit(self, self._processes)
        ensure_children()
        ensure_descriptors(_DESCRIPTORS_A_WORKER * workers)
        try:
            with without_main(source):
                context = worker_context("forkserver")
                with deferred_signals():
                    for number in range(workers):
                        self._start(context, source, encoding, number)
        except BaseException as error:
            self._end(0)
            if isinstance(error, (pickle.PicklingError, AttributeError, TypeError)):
                kind = type(source).__name__
                raise ValueError(f"{kind} does not go to worker processes ({error}): build with workers=0") from error
            meant = start_error(error)
            if meant is error:
                raise
            raise meant from error

    def _start(self, context: Any, source: Source, encoding: Encoding, number: int) -> None:
        ours, theirs = context.Pipe()
        self._pipes.append(ours)
        arguments = (theirs, source, encoding, self._at, number)
        process = context.Process(target=run_worker, args=arguments, name=f"penstock-build-{number}", daemon=True)
        try:
            process.start()
        finally:
            theirs.close()
        self._processes.append(process)
        self._held.append(0)
        # A worker that stops in the middle of a message must not stop this process as well.
        watch_connection(ours, POLL_S, self._stalled)

    def has_room(self) -> bool:
        """Return whether a worker would take another task at once."""
        return min(self._held) < 2

    def hand_out(self, task: Task) -> None:
        """Give a task to the worker that has least to do."""
        number = self._held.index(min(self._held))
        try:
            self._pipes[number].send(task)
        except OSError:
            raise self._lost(number) from None
        self._held[number] += 1

    def receive(self) -> Chunk:
        """Wait for the next chunk of any worker. Raises what stopped a worker."""
        while True:
            ready = connection.wait([*self._pipes, *(p.sentinel for p in self._processes)], timeout=POLL_S)
            if not ready:
                self._stalled()
                continue
            for number, (pipe, process) in enumerate(zip(self._pipes, self._processes, strict=True)):
                if pipe in ready:
                    return self._take(number)
                if process.sentinel in ready:
                    raise self._lost(number)

    def _take(self, number: int) -> Chunk:
        pipe = self._pipes[number]
        try:
            answer = pipe.recv()
            if isinstance(answer, Chunk):
                answer.payload = pipe.recv_bytes()  # apart, to be neither pickled nor copied for it
        except (EOFError, OSError):
            raise self._lost(number) from None
        self._silent_s = 0.0
        self._held[number] -= 1
        if isinstance(answer, Chunk):
            return answer
        error, trace = answer
        raise error from (WorkerTraceback(trace) if trace else None)

    def _lost(self, number: int) -> LoaderError:
        process = self._processes[number]
        process.join(_LEAVE_S)
        sample = int(self._at.array[number])
        ending = describe_exit(process.exitcode, self._oom_kills)
        return death_error(ending, sample=sample if sample >= 0 else None, worker=process.pid)

    def _stalled(self) -> None:
        """Look at the workers, every POLL_S without an answer; a clock would go on while the job itself is stopped."""
        for number, process in enumerate(self._processes):
            if not process.is_alive():
                raise self._lost(number)
        self._silent_s += POLL_S
        if self._silent_s > DEFAULT_WATCHDOG_S:
            print_stacks(self._processes, self._processes[0].pid)
            samples = ", ".join(str(sample) for sample in self._at.array.tolist())
            cause = f"no worker has answered for {DEFAULT_WATCHDOG_S:.0f} s; they are at the samples {samples}"
            raise LoaderError("E-TIMEOUT", cause, fix="look at these files: slow or dead storage")

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(0 if kind else _LEAVE_S)

    def _end(self, grace_s: float) -> None:
        """End the workers, by force after `grace_s`."""
        try:
            if grace_s:
                for pipe in self._pipes:
                    with contextlib.suppress(OSError):
                        pipe.send(None)
                for process in self._processes:
                    process.join(grace_s)
        finally:  # a signal may interrupt the above
            kill(self._processes)
            for process in self._processes:
                process.join(_LEAVE_S)
            for pipe in self._pipes:
                pipe.close()
            self._at.close()


def run_worker(
    pipe: connection.Connection[Any, Any], source: Source, encoding: Encoding, at: SharedArray, number: int
) -> None:
    """Be a worker process: tasks in, chunks out, until None comes; the fork server knows it by this function."""
    start_worker(number)
    for other in OUTLASTED:
        # What a worker starts inherits this, or an image would be stored as one that jpegtran cannot take.
        signal.signal(other, signal.SIG_IGN)

    def working_on(sample: int) -> None:
        at.array[number] = sample

    encoder = None
    with contextlib.suppress(EOFError, OSError):  # the builder has gone
        while (task := pipe.recv()) is not None:
            try:
                encoder = encoder or SampleEncoder(encoding)
                chunk = encode_chunk(source, encoder, task, working_on)
            except Exception as error:
                pipe.send(exception_error(error, int(at.array[number]), worker=os.getpid()))
                continue
            payload, chunk.payload = chunk.payload, b""
            pipe.send(chunk)
            pipe.send_bytes(payload)
