"""Iterator that watches the worker processes of the drop-in DataLoader: their current work, and their end."""

from __future__ import annotations

import contextlib
import errno
import math
import multiprocessing
import queue
import reprlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

import torch

from penstock.loaders.drop_in.fetcher import Ended, Fetched, ProcessState
from penstock.loaders.drop_in.iterators import CountingIterator, alive
from penstock.loaders.drop_in.stateful import States, is_stateful
from penstock.loaders.drop_in.stream_position import Mark, Place
from penstock.loaders.drop_in.worker_start import MAIN_GUARD, WorkerStart
from penstock.loaders.run.workers.failures import death_error, silence_error
from penstock.loaders.run.workers.launch import start_fork_server
from penstock.loaders.run.workers.messages import watched_get
from penstock.loaders.run.workers.watch import WatchedIterator
from penstock.loaders.run.workers.worker_progress import (
    BUSY,
    DEFAULT_WATCHDOG_S,
    PID,
    POLL_S,
    SAMPLE,
    Watchdog,
    WorkerProgress,
)
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import warn_user

if TYPE_CHECKING:
    from penstock.loaders.drop_in.data_loader import DataLoader

_EXIT_S = 5.0  # time limit; a process closes its sockets some time before its exit is visible
_BACKEND = "torch"
_START_FIX = (
    f"see its traceback above: put code that starts workers under `{MAIN_GUARD}`, and what workers need (data set, "
    "collate_fn, worker_init_fn) at the top level of a module, not under it"
)
_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = 64


class BatchIterator(WatchedIterator, CountingIterator):
    """torch's DataLoader iterator that raises an error about its workers instead of waiting forever.

    After LoaderError E-WORKER, E-OOM, E-TIMEOUT, E-FD or E-SHM its processes are ended and `spent` is True. Without
    watchdog_s it waits for silent workers like torch, but warns once.
    """

    grace_s = 4.0

    # Initial values, in case the construction is interrupted before torch sets them.
    _shutdown = True
    _in_order = True

    def __init__(self, loader: DataLoader[object]) -> None:
        self._watchdog = Watchdog(math.inf if loader.watchdog_s is None else loader.watchdog_s)
        self._all_started = self._has_warned_silent = False
        self._handed_out: dict[int, tuple[int, object, States]] = {}  # task -> number, indices, sampler's states
        self._ended: dict[int, ProcessState | None] = {}
        self._early: deque[tuple[int, Any]] = deque()  # received before torch requested them
        self._heard: set[int] = set()  # workers
        self._is_receiving = False
        self._progress = WorkerProgress(loader.num_workers, shared=True)
        me = weakref.ref(self)  # a cycle would delay the end of the workers until the garbage collector runs
        user_init = loader.worker_init_fn
        self._locks = loader.device is not None and loader.device.type == "cuda" and not loader.pin_memory
        start = WorkerStart(user_init, self._progress, tuple(loader._place.resume), self._locks)
        try:
            loader.__dict__["worker_init_fn"] = start  # without torch's __setattr__, where Ctrl-C could lose either
            if get_start_method(loader) == "forkserver":
                start_fork_server()
            super().__init__(
                loader,
                lambda *where: alive(me)._make_death_error(*where),
                lambda *where: alive(me)._check_silence(*where),
            )
        except (ConnectionError, EOFError) as error:
            cause = "a worker process ended while it was being started"
            raise LoaderError("E-WORKER", cause, fix=_START_FIX, backend=_BACKEND) from error
        except OSError as error:
            raise _find_lack_of_descriptors(error) or error from None
        finally:
            loader.__dict__["worker_init_fn"] = user_init

    def _after_seed(self) -> None:
        """Make torch start its thread for pinned memory, for a device even without pin_memory=True.

        In the consumer's thread this copy would take longer than many training steps.
        """
        super()._after_seed()
        device = None if self._feed is None else self._feed.device
        self._pin_memory = self._pin_memory or self._locks
        if self._pin_memory and device is not None and device.type == "cuda":
            # The thread uses the current device, and would create a context on another GPU. Set it until the start:
            self._start.enter_context(torch.cuda.device(device))

    def _watch(self) -> None:
        super()._watch()
        if self._pin_memory:
            results: Any = self._worker_result_queue
            ends = [worker.sentinel for worker in self._workers]
            results.get = _get_in_thread(results, self._pin_memory_thread_done_event, ends)

    @property
    def spent(self) -> bool:
        """Whether its processes have ended."""
        return bool(self._shutdown)

    def ready(self) -> int:
        if self._shutdown:
            return 0
        if self._is_iterable or not self._in_order:
            return len(self._early) + int(self._data_queue.qsize())
        while self._tasks_outstanding and (self._early or not self._data_queue.empty()):
            self._receive_early()
        count = 0
        while len(self._task_info.get(self._rcvd_idx + count, ())) == 2:
            count += 1
        return count

    def _receive_early(self) -> None:
        task, data = self._get_data()
        self._tasks_outstanding -= 1
        self._task_info[task] += (data,)

    def __next__(self) -> Any:
        with self._end_if_interrupted():
            return super().__next__()

    @contextlib.contextmanager
    def _end_if_interrupted(self) -> Iterator[None]:
        """End the workers if Ctrl-C interrupts the block: torch's records may differ from what the workers received."""
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.shut_down()
            raise

    def _reset(self, loader: DataLoader[object], first_iter: bool = False) -> None:
        with self._end_if_interrupted():
            self._begin_epoch(loader, first_iter)

    def _begin_epoch(self, loader: DataLoader[object], first_iter: bool) -> None:
        if not first_iter and not self._is_iterable:
            # torch forgets the tasks of an unfinished epoch before it waits for them: a hang could not be explained.
            while self._tasks_outstanding:
                self._rcvd_idx = next(task for task, info in self._task_info.items() if len(info) == 1)
                self._receive_early()
        self._handed_out, self._ended, self._heard = {}, {}, set()
        self._turn = loader._place.turn if self._is_iterable else loader._place.batches % self._num_workers
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        while self._turn:  # each worker continues with its own share
            self._turn -= 1
            next(self._worker_queue_idx_cycle)
        super()._try_put_index()

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        draws = self._sampler_iter
        self._handed_out[self._send_idx] = draws.number, index, draws.get_states()
        return index

    def _wait_for_start(self) -> None:
        """Wait until all workers have started: torch's timeout is meant for a batch."""
        sentinels = [worker.sentinel for worker in self._workers]
        while not self._all_started and not connection.wait(sentinels, timeout=0.01):
            starting = (self._progress.table[: self._num_workers, PID] == 0).nonzero()[0]
            if len(starting):
                self._raise_if_silent(int(starting[0]))
            self._all_started = not len(starting)

    def place_to_save(self) -> Place:
        """Return this iteration's place, with the initial states of workers that have not delivered anything yet."""
        # A signal handler may call this while this thread receives: it would wait for a lock of its own thread.
        if self._needs_starts() and not self._is_receiving and not self._shutdown:
            while {info[0] for info in self._task_info.values() if len(info) == 1} - self._heard:
                self._early.append(self._receive())
        return self._place

    def _needs_starts(self) -> bool:
        """Return whether a state may lack data that a worker sends with its first batch."""
        place = self._place
        # Workers that survive an epoch that was left early draw from generators with unknown seeds.
        is_unknown = self._is_iterable and place.base_seed is None
        return is_stateful(self._dataset) or (is_unknown and not (place.processes and all(place.processes)))

    def _get_data(self) -> Any:
        task, data = self._early.popleft() if self._early else self._receive()
        if isinstance(data, Ended):
            self._ended[data.worker_id] = data.state
        self._latest = task
        return task, data

    def _receive(self) -> tuple[int, Any]:
        self._watchdog.restart()
        self._is_receiving = True
        try:
            if self._timeout > 0 and not self._all_started:
                self._wait_for_start()
            task, data = super()._get_data()  # type: ignore[no-untyped-call]
            if task in self._task_info:  # not a worker's confirmation that it begins an epoch
                worker = self._task_info[task][0]
                self._heard.add(worker)
                if isinstance(data, Fetched) and data.start:
                    self._place.note_start(worker, self._num_workers, data.start)
            return task, data
        except BaseException as error:
            found = self._diagnose(error)
            if (
                found is error and self._timeout > 0 and type(error) is RuntimeError
            ):  # torch can continue after its timeout
                raise
            self.shut_down()
            if found is error:
                raise
            raise found from error
        finally:
            self._is_receiving = False

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        number, _, places = self._handed_out.pop(self._rcvd_idx - 1 if self._in_order else self._latest)
        data, state = (data.batch, data.state) if isinstance(data, Fetched) else (data, None)
        try:
            batch = super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "</torch_" not in str(error):  # torch's name for the shared memory of a batch
                raise
            raise LoaderError("E-SHM", str(error).splitlines()[-1], backend=_BACKEND) from error
        self._marks.append(Mark(number, places, worker_idx, state))
        return batch

    def get_end_states(self) -> list[ProcessState | None] | None:
        if not self._persistent_workers:
            return None
        if not self._is_iterable:
            return self._place.processes
        return [self._ended.get(worker) for worker in range(self._num_workers)]

    def _diagnose(self, error: BaseException) -> BaseException:
        """Return a LoaderError with the cause if it is known; otherwise `error`."""
        if isinstance(error, LoaderError):
            return error
        thread = self._pin_memory_thread if self._pin_memory else None
        if thread is not None and not thread.is_alive():
            try:
                self._raise_if_dead(EOFError())
            except LoaderError as death:
                return death
            return LoaderError(
                "E-WORKER",
                "the thread that pins memory ended",
                fix="see its traceback above" + ("" if self._locks else ", or pass pin_memory=False"),
                backend=_BACKEND,
            )
        return _find_lack_of_descriptors(error) or error

    def _raise_if_silent(self, worker: int | None = None) -> None:
        super()._raise_if_silent(worker)
        if worker is None and self._rcvd_idx not in self._task_info:  # workers have not confirmed the new epoch yet
            silence = self._check_silence(None, 0)
            if silence is not None:
                raise silence

    def _raise_if_dead(self, cause: BaseException | None) -> None:
        if isinstance(cause, (OSError, EOFError)):
            ending = connection.wait([worker.sentinel for worker in self._workers], timeout=_EXIT_S)
            for worker in self._workers:
                if worker.sentinel in ending:
                    worker.join(_EXIT_S)
        super()._raise_if_dead(cause)

    def shut_down(self) -> None:
        """End all workers within seconds."""
        super().shut_down()
        if hasattr(self, "_progress"):  # it is missing if the construction was interrupted
            self._progress.close()

    def close(self) -> None:
        super().close()
        self.shut_down()

    def _describe_task(self, worker: int) -> tuple[str, int | None]:
        """Return a description of a worker's current work, and its sample."""
        row = self._progress.table[worker]
        if not row[PID]:
            return " while it was being started", None
        if self._is_iterable:
            return "", None
        if not row[BUSY]:
            return " between two batches", None
        sample = int(row[SAMPLE])
        tasks = [self._handed_out[task][1] for task, info in self._task_info.items() if info == (worker,)]
        batches = [indices for indices in tasks if isinstance(indices, list) and sample in indices]
        words = f" during the batch of samples {_SHORT.repr(batches[0])}" if batches else ""
        return words, sample if sample >= 0 else None

    def _make_death_error(self, worker: int, pid: int, ending: str) -> LoaderError:
        doing, sample = self._describe_task(worker)
        where: dict[str, Any] = {"sample": sample, "worker": pid, "backend": _BACKEND}
        who = f"DataLoader worker (pid {pid})"
        ending_text = ending.replace("killed by", "is killed by signal:")  # torch's words
        if "SIGBUS" in ending:
            return LoaderError("E-SHM", f"{who} {ending_text}{doing}", **where)
        look = "check the system's log (dmesg)" if sample is None else "check the sample named here"
        fix = f"{look}; run with num_workers=0 to see a crash of the dataset itself"
        if ending == "exited with 1" and not self._progress.table[worker, PID]:
            fix = _START_FIX
        return death_error(ending_text, doing, who=who, fix=fix, **where)

    def _check_silence(self, worker: int | None, pid: int) -> LoaderError | None:
        """Return the error if there was no message and no new sample within `watchdog_s`; otherwise None."""
        if not self._watchdog.has_expired(b"" if worker is None else self._progress.table[worker].tobytes()):
            if self._watchdog.silent_s >= DEFAULT_WATCHDOG_S and not self._has_warned_silent:
                self._warn_of_silence(worker, pid)
            return None
        doing, sample = ("", None) if worker is None else self._describe_task(worker)
        fix = "check whether the storage of these samples is slow or has failed, or increase watchdog_s"
        return silence_error(
            self._workers, pid, self._watchdog.silent_s, doing, fix=fix, sample=sample, backend=_BACKEND
        )

    def _warn_of_silence(self, worker: int | None, pid: int) -> None:
        self._has_warned_silent = True
        doing = "" if worker is None else self._describe_task(worker)[0]
        text = f"worker process {pid} of the DataLoader{doing} has made no progress for {self._watchdog.silent_s:.0f} s"
        warn_user(f"{text}; watchdog_s= makes this an error", RuntimeWarning)


def get_start_method(loader: DataLoader[object]) -> str:
    """Return a loader's start method for workers."""
    context = loader.multiprocessing_context or multiprocessing
    return str(context.get_start_method())


def _find_lack_of_descriptors(error: BaseException) -> LoaderError | None:
    """Return the LoaderError for a lack of descriptors, in any form reported by torch; None for another `error`."""
    lack = isinstance(error, OSError) and error.errno == errno.EMFILE
    if lack or (isinstance(error, RuntimeError) and "ancdata" in str(error)):
        fix = (
            "keep fewer batches, increase the limit of open files (ulimit -n 4096), or call "
            "torch.multiprocessing.set_sharing_strategy('file_system')"
        )
        return LoaderError("E-FD", "no descriptor is left for the workers' batches", fix=fix, backend=_BACKEND)
    return None


def _get_in_thread(results: Any, done: Any, sentinels: list[int]) -> Callable[..., Any]:
    """Return a Queue.get for the thread that pins memory. It ends the thread quietly if a worker has ended.

    The consumer waits for the thread's batches, detects the thread's end, and reports the reason.
    """

    def raise_if_over(pid: int | None) -> None:
        if done.is_set():
            raise queue.Empty
        if connection.wait(sentinels, timeout=0):
            raise EOFError("a worker process ended during a message")

    get = watched_get(results, 2 * POLL_S, raise_if_over)

    def get_quietly(block: bool = True, timeout: float | None = None) -> Any:
        try:
            if results._reader.poll(POLL_S):
                return get()
            raise queue.Empty
        except (OSError, EOFError):
            if not connection.wait(sentinels, timeout=_EXIT_S):
                raise
            done.set()
            raise queue.Empty from None

    return get_quietly
