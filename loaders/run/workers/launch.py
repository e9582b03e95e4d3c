"""Start of worker processes, so that a signal at any moment does not leave a half-started process behind."""

from __future__ import annotations

import contextlib
import errno
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.context import BaseContext, ForkServerContext
from types import FrameType
from typing import Any

from penstock.loaders.run.workers.leftovers import mark_temporary_folder, sweep
from penstock.pipelines.errors import LoaderError

_PRELOAD = "penstock.loaders.front.fork_server_preload"
_server: Any = getattr(forkserver, "_forkserver")  # noqa: B009  multiprocessing has only one
_our_servers: set[int] = set()  # process ids of the fork servers that were started here
_ready_servers: set[int] = set()  # process ids of our fork servers that have finished their imports
_others_servers: list[int] = []  # descriptors that keep alive fork servers that were not started here
_sweep_once = functools.cache(sweep)
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def worker_context(start_method: str) -> BaseContext:
    """Return the multiprocessing context for workers with this start method."""
    _start_resource_tracker()
    return _ready_fork_server() if start_method == "forkserver" else multiprocessing.get_context(start_method)


def _start_resource_tracker() -> None:
    """Start multiprocessing's resource tracker if it does not run.

    It is started separately from the workers, because its start unblocks SIGINT and SIGTERM. SIGHUP and SIGUSR1 stay
    blocked in it. Otherwise closing a terminal, or a batch system that signals every process, would end it
    before it has cleaned up.
    """
    _sweep_once()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGUSR1])
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ready_fork_server() -> ForkServerContext:
    """Return the context of a fork server after it has imported torch. The first call waits seconds for this.

    A signal interrupts the wait, as it should; starting a worker afterwards takes milliseconds. If the server is known
    to be ready, no process is started to wait for it: a process that is interrupted at its start prints a traceback.
    """
    context = multiprocessing.get_context("forkserver")
    fresh = not our_server_runs()
    start_fork_server()
    if _server._forkserver_pid in _ready_servers:
        return context
    first = context.Process(target=answer_start, daemon=True)
    try:
        with hidden_main():
            first.start()
        first.join()
    except BaseException:
        if fresh and _server._forkserver_pid:  # interrupted; the server would continue its imports for seconds
            os.kill(_server._forkserver_pid, signal.SIGKILL)
        raise
    first.close()
    _ready_servers.add(_server._forkserver_pid)
    return context


def answer_start() -> None:
    """Do nothing, in a process started to wait for the fork server, which forks it after its imports."""


def start_fork_server() -> None:
    """Start our fork server for multiprocessing if it does not run. It imports torch, and signals do not end it.

    A signal would end a server that the user or a library has started, and its workers. We do not use such a server.
    """
    if _server._forkserver_pid is not None and not our_server_runs():
        _others_servers.append(_server._forkserver_alive_fd)
        _reset()
    wanted = [
        name for name in _server._preload_modules if name not in ("__main__", _PRELOAD)
    ]  # its default is __main__
    _server.set_forkserver_preload([*wanted, _PRELOAD])  # torch is imported once, not once per worker
    _start_resource_tracker()
    # Ctrl-C in the server's first second would print a traceback. fork_server_preload unblocks the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFERRED)
    try:
        if _server._forkserver_pid is None:
            mark_temporary_folder()
        forkserver.ensure_running()
        _our_servers.add(_server._forkserver_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def our_server_runs() -> bool:
    """Return whether the running fork server was started here; other servers are not used."""
    return _server._forkserver_pid in _our_servers


def _forget_parents_server() -> None:
    """Release the fork server of the parent that this process was forked from; only the parent can use it."""
    for descriptor in (_server._forkserver_alive_fd, *_others_servers):
        with contextlib.suppress(OSError, TypeError):  # None: no server
            os.close(descriptor)  # otherwise the server would live as long as this process
    _others_servers.clear()
    _reset()


def _reset() -> None:
    """Make multiprocessing start another fork server when it needs one."""
    preload = _server._preload_modules
    _server.__init__()  # also resets its lock, which may be held by a thread that does not exist after the fork
    _server.set_forkserver_preload(preload)


os.register_at_fork(after_in_child=_forget_parents_server)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer Ctrl-C and similar signals until the block is finished; a second signal acts at once.

    A worker that is interrupted during its start prints a traceback, or does not end. Processes started in the block
    never receive SIGINT.
    """
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {}
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(number)
            return
        arrived.clear()
        handlers[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():  # it runs the handlers
        for number in _DEFERRED:
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, note)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if arrived:
            signal.raise_signal(arrived[0])


def start_error(error: BaseException) -> BaseException:
    """Return the LoaderError for an exception at the start of worker processes, or `error` itself if unknown."""
    no_thread = type(error) is RuntimeError and "thread" in str(error)  # Python's "can't start new thread"
    if not no_thread and not isinstance(error, (OSError, EOFError, MemoryError)):
        return error
    number = error.errno if isinstance(error, OSError) else None
    if no_thread or isinstance(error, MemoryError) or number in (errno.ENOMEM, errno.EAGAIN):
        return LoaderError("E-MEM", f"worker processes cannot be started: {str(error) or 'out of memory'}")
    if number in (errno.EMFILE, errno.ENFILE):
        return LoaderError("E-FD", f"worker processes cannot be started: {error}")
    return LoaderError("E-WORKER", f"a worker process ended while it was being started ({str(error) or 'no details'})")


def hides_main(source: object) -> bool:
    """Return whether workers need not import the user's script, because the source's class is not defined there."""
    return type(source).__module__.startswith("penstock.")


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """Start processes in the block that do not import the parent's `__main__`.

    multiprocessing would import it in every new process. This would repeat the script's imports and require an
    `if __name__ == "__main__"` guard in it. Processes that other threads start meanwhile import it as usual.
    """
    before = getattr(_this_thread, "hides_main", False)
    _this_thread.hides_main = True
    try:
        yield
    finally:
        _this_thread.hides_main = before


_this_thread = threading.local()
_preparation_data: Callable[[str], dict[str, object]] = spawn.get_preparation_data


def _prepare_without_main(name: str) -> dict[str, object]:
    """Return the data for the preparation of a new process (spawn.prepare), without `__main__` if it is hidden."""
    data = _preparation_data(name)
    if getattr(_this_thread, "hides_main", False):
        data = {key: value for key, value in data.items() if not key.startswith("init_main")}
    return data


spawn.get_preparation_data = _prepare_without_main
