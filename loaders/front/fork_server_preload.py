"""Setup of multiprocessing's fork server before it forks the workers. Only the fork server may import this module."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing import forkserver, util
from types import FrameType
from typing import Any

from penstock.loaders.drop_in.worker_start import WorkerStart
from penstock.loaders.run.workers.launch import answer_start
from penstock.loaders.run.workers.leftovers import remove_folder
from penstock.loaders.run.workers.worker_setup import SENT_TO_JOBS, start_worker

_SERVER, _PARENT = os.getpid(), os.getppid()
_PARENT_ENDS_S = 5.0  # a killed process closes its pipes before its children can see its death


def _leave_quietly(number: int, frame: FrameType | None) -> None:
    """End a process without a traceback if Ctrl-C comes before the process runs its target."""
    if os.getpid() != _SERVER:  # multiprocessing will make the server itself ignore the signal
        os._exit(128 + number)


def _remove_socket() -> None:
    """Remove the socket of a parent that was killed, and its temporary folder, which contains nothing else."""
    address = getattr(forkserver, "_forkserver")._forkserver_address  # noqa: B009
    if not isinstance(address, str) or not os.path.isabs(address):
        return
    deadline = time.monotonic() + _PARENT_ENDS_S
    # A parent that ended normally removed the folder before it released this server.
    while os.path.isdir(os.path.dirname(address)) and time.monotonic() < deadline:
        if _is_orphan():
            with contextlib.suppress(OSError):
                remove_folder(os.path.dirname(address))
            return
        time.sleep(0.001)


def _is_orphan() -> bool:
    """Return whether the parent is dead, so that another process has adopted this one."""
    parent = os.getppid()
    try:
        # The parent may have been killed before this import; the adopting process is then in another group.
        return parent != _PARENT or os.getpgid(parent) != os.getpgrp()
    except OSError:  # the parent is ending right now
        return False


def _end_at_once() -> None:
    """Run the exit handlers of the server, then end it: finalising an interpreter with torch takes 0.6 s of a CPU."""
    if os.getpid() == _SERVER:
        atexit.unregister(_end_at_once)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(0)


def _unblock_signals(_: object) -> None:
    """Unblock the signals in a user's process. Ours end quietly by Ctrl-C (workers: until their handlers are set)."""
    process: Any = multiprocessing.current_process()
    ours = process._target is answer_start or any(
        getattr(arg, "func", arg) is start_worker or isinstance(arg, WorkerStart) for arg in process._args
    )
    if os.getppid() == _SERVER and not ours:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_JOBS)
        signal.signal(signal.SIGINT, signal.default_int_handler)


atexit.register(_remove_socket)
atexit.register(_end_at_once)  # it runs first, because this module is preloaded last
signal.signal(signal.SIGINT, _leave_quietly)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # start_fork_server blocked it
# Blocked because the workers would end together with the server; it ends automatically after the last worker.
signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_JOBS)
util.register_after_fork(_unblock_signals, _unblock_signals)
