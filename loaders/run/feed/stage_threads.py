"""Threads that run the batch stage on a CPU, shared by the loaders of a process."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

import torch

from penstock.loaders.run.workers.launch import deferred_signals
from penstock.loaders.system.torch_threads import keep_own_number, run_alone

Job = Callable[[], None]
_MOST_THREADS = 8  # a job also calls many small operations of torch, each of which takes the interpreter lock
_POLL_S = 1.0
_LEAVE_S = 2.0  # time at close for the threads to end


class _Jobs:
    """The jobs of one batch, done by several threads that call `work`."""

    def __init__(self, jobs: Sequence[Job], num_threads: int) -> None:
        self._left, self._num_threads = deque(jobs), num_threads
        self._ended: list[BaseException | None] = []
        self._wake: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Do jobs until none is left, or until one of this batch has failed."""
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as caught:
            error = caught
            self._left.clear()
        self._ended.append(error)
        self._wake.put(None)

    def _work(self) -> None:
        for job in iter(self._take, None):
            job()

    def _take(self) -> Job | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def wait(self) -> None:
        """Wait for the threads. Raises the first exception of a job; after Ctrl-C, once the threads have stopped."""
        try:
            self._wait()
        except BaseException:
            self._left.clear()
            self._wait()
            raise
        for error in filter(None, self._ended):
            raise error

    def _wait(self) -> None:
        while len(self._ended) < self._num_threads:  # Ctrl-C may lose a call, but never an element of this list
            with contextlib.suppress(Empty):
                self._wake.get(timeout=_POLL_S)


class StageThreads:
    """Threads that do the jobs of batches; they start with the first batch, and end with their last user.

    Each job is done by one thread, and torch's operations in it use no other threads. In torch's own pool, the threads
    wait for each other in a loop after each small operation. If other programs or the workers use the processors, that
    takes several times as long as the work.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._users: set[int] = set()

    @property
    def limit(self) -> int:
        """Number of threads for a batch of many jobs: as many as torch may use in the calling thread, with a limit."""
        return min(torch.get_num_threads(), _MOST_THREADS)

    def run(self, user: object, jobs: Sequence[Job]) -> None:
        """Do `jobs` for a user, in `limit` threads; in the calling thread if this is 1. Raises a job's exception."""
        num_threads = min(self.limit, len(jobs))
        self._users.add(id(user))
        if self.limit < 2 or not self._start(num_threads):
            for job in jobs:
                job()
            return
        batch = _Jobs(jobs, num_threads)
        for _ in range(num_threads):
            self._work.put(batch.work)
        batch.wait()

    def _start(self, num_threads: int) -> bool:
        """Start threads until there are `num_threads`; return whether there is at least one."""
        with self._lock:
            if len(self._threads) >= num_threads:
                return True
        with deferred_signals(), self._lock, keep_own_number() as ready:
            while len(self._threads) < num_threads:
                name = f"penstock-stage-{len(self._threads)}"
                thread = threading.Thread(target=run_alone, args=(ready, self._serve), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # can't start new thread: those that run do the work
                    break
                self._threads.append(thread)
                ready.acquire()
            return bool(self._threads)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is not None:
                work()
                del work  # it holds the batch
                continue
            with self._lock:
                if not self._users:
                    self._threads.remove(threading.current_thread())
                    return

    def leave(self, user: int) -> None:
        """Let the threads end if the user with this id is the last one. May be called while an object is deleted."""
        self._users.discard(user)
        if not self._users:
            for _ in list(self._threads):
                self._work.put(None)

    def close(self, user: object) -> None:
        """Leave, and wait for the threads if they end."""
        self.leave(id(user))
        for thread in [] if self._users else list(self._threads):
            thread.join(_LEAVE_S)

    def end(self) -> None:
        """End the threads, whoever uses them."""
        self._users.clear()
        self.close(self)


THREADS = StageThreads()
os.register_at_fork(after_in_child=THREADS.__init__)  # type: ignore[misc]  # the threads are the parent's
# A thread inside torch at the end of the interpreter would crash the process.
atexit.register(THREADS.end)
