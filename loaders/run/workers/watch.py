"""WatchedIterator: waits for torch's worker processes, reports a death at once and silence after a time limit."""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import queue
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Process, connection, process, util
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from penstock.loaders.run.workers.failures import SERVER_LOST, describe_exit, is_stopped
from penstock.loaders.run.workers.launch import deferred_signals, hidden_main, hides_main, start_error, worker_context
from penstock.loaders.run.workers.leftovers import named_semaphores, sweep
from penstock.loaders.run.workers.messages import watched_get
from penstock.loaders.run.workers.worker_progress import POLL_S
from penstock.loaders.run.workers.worker_setup import start_worker
from penstock.loaders.system.machine import oom_kills
from penstock.loaders.system.signal_safe import make_signal_safe
from penstock.pipelines.errors import LoaderError

_SIGNALS_S = 0.5  # between a batch system's signals to the processes of a job
_END_S = 5.0  # time limit for the end of all workers
OnDeath = Callable[[int, int, str], LoaderError]
OnSilence = Callable[[int, int], LoaderError | None]


def _cpu_by_default() -> contextlib.AbstractContextManager[object]:
    """Create tensors on the CPU in the block; free if that is the default. Forked workers stay in the block."""
    return torch.device("cpu") if torch.get_default_device().type != "cpu" else contextlib.nullcontext()


class WatchedIterator(_MultiProcessingDataLoaderIter):
    """torch's DataLoader iterator with another way of waiting for data.

    torch polls its workers every five seconds, and not at all if they are not its children (forkserver). This iterator
    waits for the workers' sentinels together with the data, so it detects a death immediately.

    The names from `torch.utils.data` are private. They have not changed since torch 1.2, and a test checks them.

    Attributes:
        grace_s: seconds for workers to end normally at close, less than the 5 that the close may take.
        on_death: called with a worker's number, process id and ending; returns the error to raise.
        on_silence: called with number and process id of the awaited worker; returns the error to raise, or
            None if the silence is not too long yet.
    """

    grace_s = 1.0
    on_death: OnDeath
    on_silence: OnSilence

    def __init__(self, loader: Any, on_death: OnDeath, on_silence: OnSilence) -> None:
        self.on_death, self.on_silence = on_death, on_silence
        self._oom_kills = oom_kills()
        self._workers_status = [True] * loader.num_workers  # torch sets it last
        self._workers, self._index_queues = [], []
        self._owner = os.getpid()
        _iterators.add(self)
        try:
            # torch draws a seed on the default device, and reads it.
            with named_semaphores(), _cpu_by_default(), contextlib.ExitStack() as self._start:
                self._start.enter_context(deferred_signals())
                super().__init__(loader)
        except BaseException:
            self._let_torch_forget()
            self.shut_down()
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:  # the workers run
            self._watch()
            self._start.close()
        super()._reset(loader, first_iter)

    def _watch(self) -> None:
        """Prepare queues and finalizers after the workers' start, before any item and while signals are deferred."""
        self._let_torch_forget()
        # Also at the end of the program: workers ignore multiprocessing's SIGTERM, and it would wait for them.
        util.Finalize(self, _kill, args=(self._workers,), exitpriority=0)
        for box in (*self._index_queues, self._data_queue):
            make_signal_safe(box)  # otherwise Ctrl-C during a put would block the next one forever
        inboxes: list[Any] = self._index_queues
        for inbox in inboxes:
            with inbox._notempty:
                inbox._start_thread()  # else the first put does; Ctrl-C there may leave a thread that sends nothing
        if not self._pin_memory:
            results: Any = self._worker_result_queue
            stalled = weakref.WeakMethod(self._raise_if_lost)  # a cycle would keep the queue's descriptors open
            self._get_message = watched_get(results, POLL_S, lambda pid: stalled()(pid))  # type: ignore[misc]  # noqa: PLW0108

    def _let_torch_forget(self) -> None:
        """Keep torch's SIGCHLD handler from raising in the user's code; deaths are detected without it."""
        with contextlib.suppress(ValueError):  # torch does not know the workers: their start was interrupted
            _utils.signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
        self._worker_pids_set = False

    def _next_data(self) -> Any:
        if self._owner != os.getpid():
            cause = f"its workers belong to process {self._owner}, and this process was forked from it"
            raise LoaderError("E-MISUSE", f"this iterator cannot continue: {cause}", fix="begin a new iteration here")
        return super()._next_data()  # type: ignore[no-untyped-call]

    def raise_if_dead(self) -> None:
        """Raise the error of `on_death` if a worker has ended, even while no batch is awaited."""
        if connection.wait([worker.sentinel for worker in self._workers], timeout=0):
            self._raise_if_dead(None)

    def refill(self, most: int) -> None:
        """Assign items until `most` are assigned and not returned. Torch only assigns one for each that it returns."""
        while (assigned := self._send_idx) - self._rcvd_idx < most:
            self._try_put_index()
            if self._send_idx == assigned:  # no item is left
                break

    def _try_get_data(self, timeout: float = POLL_S) -> tuple[bool, object]:
        results: Any = self._worker_result_queue
        incoming = None if self._pin_memory else results._reader
        deadline = time.monotonic() + timeout
        while True:
            sentinels = [w.sentinel for alive, w in zip(self._workers_status, self._workers, strict=True) if alive]
            if incoming is None:
                with contextlib.suppress(queue.Empty):
                    return True, self._data_queue.get(timeout=POLL_S)
                ready = connection.wait(sentinels, timeout=0)
            else:
                ready = connection.wait([incoming, *sentinels], timeout=POLL_S)
                if incoming in ready:
                    try:
                        return True, self._get_message()
                    except (OSError, EOFError) as error:
                        self._raise_if_dead(error)
                        raise
            if ready:
                self._raise_if_dead(None)
            self._raise_if_silent()
            if time.monotonic() >= deadline:
                return False, None

    def _raise_if_lost(self, pid: int | None) -> None:
        """Raise if a worker is dead, or if the one with this process id (else: the awaited one) is silent."""
        self.raise_if_dead()
        self._raise_if_silent(next((n for n, worker in enumerate(self._workers) if worker.pid == pid), None))

    def _raise_if_silent(self, worker: int | None = None) -> None:
        if worker is None and (awaited := self._task_info.get(self._rcvd_idx)) is not None:
            worker = awaited[0]
        if worker is not None:
            silence = self.on_silence(worker, self._workers[worker].pid or 0)
            if silence is not None:
                raise silence

    def _raise_if_dead(self, cause: BaseException | None) -> None:
        for number, worker in enumerate(self._workers):
            if self._workers_status[number] and not worker.is_alive():
                if worker.exitcode in (-signal.SIGTERM, -signal.SIGHUP, SERVER_LOST):
                    time.sleep(_SIGNALS_S)  # a batch system that ends processes one by one may reach this one next
                ending = describe_exit(worker.exitcode, self._oom_kills)
                raise self.on_death(number, worker.pid or 0, ending) from cause

    def shut_down(self) -> None:
        """End all workers within five seconds: ask them to end, then kill the remaining ones."""
        if getattr(self, "_shutdown", True):
            return
        self._shutdown = True  # so that torch does not clean up again
        end = time.monotonic() + _END_S
        waiting = {worker.sentinel: worker for worker in self._workers}
        boxes: list[Any] = [*self._index_queues, self._worker_result_queue]
        try:
            self._let_leave(waiting, time.monotonic() + self.grace_s)
        finally:
            for worker in waiting.values():
                worker.kill()
            for worker in self._workers:
                worker.join(_until(end))
            if waiting:
                sweep()  # killed workers have not removed their temporary folders
            _within(_until(end), *(box.cancel_join_thread for box in boxes), *(box.close for box in boxes))
            # A queue's thread holds its semaphores: if it ended with the program, they would be half removed. It may
            # hang if the pipe is full of data that a killed worker has not read.
            for feeder in [box._thread for box in boxes if box._thread is not None and box._thread.is_alive()]:
                feeder.join(_until(end))

    def _let_leave(self, waiting: dict[Any, Process], deadline: float) -> None:
        """Ask the workers to end, and remove those from `waiting` that end before `deadline`."""
        if hasattr(self, "_pin_memory_thread"):  # this thread reads from their queue
            self._pin_memory_thread_done_event.set()
            self._pin_memory_thread.join(_until(deadline))
        # A worker that has already ended was at the end of an iterable data set.
        if self._workers and all(
            worker.exitcode in (None, 0) and not is_stopped(worker.pid or 0) for worker in self._workers
        ):
            # A worker that was killed or stopped at the wrong moment holds the event's lock.
            inboxes: list[Any] = self._index_queues
            puts = [functools.partial(inbox.put, None) for inbox in inboxes]
            _within(_until(deadline), self._workers_done_event.set, *puts)
            while waiting and time.monotonic() < deadline:
                for gone in connection.wait(list(waiting), timeout=_until(deadline)):
                    del waiting[gone]

    def _shutdown_workers(self) -> None:
        if _utils is not None and _utils.python_exit_status is False:
            self.shut_down()


def start_workers(
    dataset: Dataset[Any],
    items: Iterator[object],
    workers: int,
    prefetch: int,
    on_death: OnDeath,
    on_silence: OnSilence,
    *,
    source: object,
    start_method: str = "forkserver",
) -> WatchedIterator:
    """Start processes that look up `items` in `dataset`, and return the iterator over the results, in order.

    prefetch: items per worker that are assigned ahead. source: the source that `dataset` reads, see hides_main.
    Raises the LoaderErrors of start_error, and the errors from pickling `dataset`.
    """
    try:
        main = hidden_main() if hides_main(source) else contextlib.nullcontext()
        with main, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Got pickle error")  # the caller raises an error about it
            # More workers than processors are useful if reads block.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader: DataLoader[Any] = DataLoader(
                dataset,
                batch_size=None,
                sampler=items,
                num_workers=workers,
                collate_fn=_as_is,
                prefetch_factor=prefetch,
                multiprocessing_context=worker_context(start_method),
                worker_init_fn=functools.partial(start_worker, environment=dict(os.environ)),
                generator=torch.Generator(),  # torch draws a seed per iterator: not from the user's generator
            )
            return WatchedIterator(loader, on_death, on_silence)
    except BaseException as error:
        translated = start_error(error)
        if translated is error:
            raise
        raise translated from error


def _kill(workers: Sequence[BaseProcess]) -> None:
    for worker in workers:
        if worker.is_alive():
            worker.kill()


def _as_is(value: object) -> object:
    return value


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _within(seconds: float, *actions: Callable[[], object]) -> None:
    """Run actions that may wait for a lock forever, but return after `seconds`."""
    done = threading.Lock()
    done.acquire()

    def act() -> None:
        # After the caller has returned, its queues are closed, and Python would print an error about that.
        try:
            with contextlib.suppress(ValueError, OSError):
                for action in actions:
                    action()
        finally:
            done.release()

    with contextlib.suppress(RuntimeError):  # no memory for a thread
        _thread.start_new_thread(act, ())  # Ctrl-C in threading.Thread.start() could leave a thread that never begins
        done.acquire(timeout=seconds)


_iterators: weakref.WeakSet[WatchedIterator] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Make a forked process release the iterators of its parent, so that it cannot end the parent's workers."""
    children: set[BaseProcess] = getattr(process, "_children")  # noqa: B009  these are ended when this process ends
    for iterator in list(_iterators):
        iterator._shutdown = True
        children.difference_update(iterator._workers)


os.register_at_fork(after_in_child=_leave_to_parent)
