"""Set multiprocessing's fork server up; it imports this module, as nothing else may, before it forks the workers."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
from multiprocessing import forkserver, util
from types import FrameType
from typing import Any

import penstock.loaders.backends.torch_backend  # noqa: F401  torch is imported once, not once a worker
from penstock.loaders.cache_encode.encode_workers import run_worker
from penstock.loaders.drop_in.worker_start import WorkerStart
from penstock.loaders.workers.settle import SENT_TO_JOBS, start_worker

_SERVER, _PARENT = os.getpid(), os.getppid()


def _leave_quietly(number: int, frame: FrameType | None) -> None:
    """End a process without a traceback on a Ctrl-C that comes before it runs what it was started for."""
    if os.getpid() == _SERVER:
        return  # multiprocessing is about to make the server ignore it
    if multiprocessing.parent_process() is None:
        os._exit(128 + number)
    signal.default_int_handler(number, frame)


def _remove_socket() -> None:
    """Remove the socket of a parent that was killed, with the temporary folder that holds nothing else."""
    address = getattr(forkserver, "_forkserver")._forkserver_address  # noqa: B009
    parent = os.getppid()
    with contextlib.suppress(OSError):
        # If the parent was killed before this file was imported, its successor is in another process group.
        killed = parent != _PARENT or os.getpgid(parent) != os.getpgrp()
        if killed and isinstance(address, str) and os.path.isabs(address):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))


def _unblock_signals(_: object) -> None:
    """Let signals end a process that is about to run; a worker unblocks them itself once it has its handlers."""
    process: Any = multiprocessing.current_process()
    worker = process._target is run_worker or any(
        arg is start_worker or isinstance(arg, WorkerStart) for arg in process._args
    )
    if os.getppid() == _SERVER and not worker:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_JOBS)


atexit.register(_remove_socket)
signal.signal(signal.SIGINT, _leave_quietly)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # start_fork_server blocked it
# Blocked in the server, with which the workers would end; it ends when all of them are gone.
signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_JOBS)
util.register_after_fork(_unblock_signals, _unblock_signals)
