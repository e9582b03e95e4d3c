"""Start worker processes so that a signal at any moment leaves no half-started one behind."""

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
_server: Any = getattr(forkserver, "_forkserver")  # noqa: B009  multiprocessing's, of which there is one
_our_servers: set[int] = set()  # process ids of the fork servers that were started here
_ready_servers: set[int] = set()  # process ids of our fork servers that have done their imports
_others_servers: list[int] = []  # descriptors that keep alive fork servers that were not started here
_sweep_once = functools.cache(sweep)
_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def worker_context(start_method: str) -> BaseContext:
    """Return the multiprocessing context for workers that are started by `start_method`."""
    _start_resource_tracker()
    return _ready_fork_server() if start_method == "forkserver" else multiprocessing.get_context(start_method)


def _start_resource_tracker() -> None:
    """Start multiprocessing's resource tracker, unless it runs.

    It is started apart from the workers, because its start unblocks SIGINT and SIGTERM. SIGHUP and SIGUSR1 stay
    blocked in it: a terminal that is closed, or a batch system that signals every process, would otherwise end it
    before it has cleaned up.
    """
    _sweep_once()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGUSR1])
    try:
        resource_tracker.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ready_fork_server() -> ForkServerContext:
    """Return the context of a fork server, once it has imported torch: the first call waits seconds for that.

    A signal interrupts the wait, as it should; starting a worker afterwards takes milliseconds. Nothing is started to
    wait for where that is known: a process that a signal interrupts at its start dies with a traceback.
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
        if fresh and _server._forkserver_pid:  # interrupted; the server would go on with its imports for seconds
            os.kill(_server._forkserver_pid, signal.SIGKILL)
        raise
    first.close()
    _ready_servers.add(_server._forkserver_pid)
    return context


def answer_start() -> None:
    """End a process that was started to wait for the fork server, which forks it once it has done its imports."""


def start_fork_server() -> None:
    """Start a fork server for multiprocessing, unless one from here runs: it imports torch, and signals do not end it.

    A server that the user or a library has started would end by a signal, and its workers with it. It is left to them.
    """
    if _server._forkserver_pid is not None and not our_server_runs():
        _others_servers.append(_server._forkserver_alive_fd)
        _reset()
    wanted = [
        name for name in _server._preload_modules if name not in ("__main__", _PRELOAD)
    ]  # its default is __main__
    _server.set_forkserver_preload([*wanted, _PRELOAD])  # torch is imported once, not once per worker
    _start_resource_tracker()
    # Ctrl-C in the server's first second would print a traceback. fork_server_preload unblocks the signals again.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFERRED)
    try:
        if _server._forkserver_pid is None:
            mark_temporary_folder()
        forkserver.ensure_running()
        _our_servers.add(_server._forkserver_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def our_server_runs() -> bool:
    """Say whether the fork server that runs was started here; one that others have started is left to them."""
    return _server._forkserver_pid in _our_servers


def _forget_parents_server() -> None:
    """Let go of a fork server that belongs to the process which this one was forked from; only that one can use it."""
    for descriptor in (_server._forkserver_alive_fd, *_others_servers):
        with contextlib.suppress(OSError, TypeError):  # None: there is no server
            os.close(descriptor)  # or it would live as long as this process
    _others_servers.clear()
    _reset()


def _reset() -> None:
    """Have multiprocessing start another fork server when it needs one."""
    preload = _server._preload_modules
    _server.__init__()  # its lock, too, may be held by a thread that a forked process does not have
    _server.set_forkserver_preload(preload)


os.register_at_fork(after_in_child=_forget_parents_server)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Put off Ctrl-C and similar signals until the block is done; a second signal acts at once.

    A worker whose start is interrupted dies with a traceback, or does not die. Processes started in the block never
    see SIGINT.
    """
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], object]] = {}
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if not arrived:
            arrived.append(number)
            return
        arrived.clear()
        handlers[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():  # which runs the handlers
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
    """Translate what was raised while worker processes were started into a LoaderError; else return `error` itself."""
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
    """Return whether workers do not import the user's script: all but those of a class that may be defined there."""
    return type(source).__module__.startswith("penstock.")


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """Start processes that do not import the parent's `__main__`.

    multiprocessing would import it in every new process, which costs the script's imports and requires an
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
    """Return the data that prepare a new process (spawn.prepare), without `__main__` where that is hidden."""
    data = _preparation_data(name)
    if getattr(_this_thread, "hides_main", False):
        data = {key: value for key, value in data.items() if not key.startswith("init_main")}
    return data


spawn.get_preparation_data = _prepare_without_main
