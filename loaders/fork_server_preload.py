"""Imported by multiprocessing's fork server, and nowhere else, before it forks the workers."""

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
    """Ctrl-C in a process that does not yet run what it was started for: no traceback, there is nothing to unwind."""
    if os.getpid() == _SERVER:
        return  # multiprocessing is about to make the server ignore it
    if multiprocessing.parent_process() is None:
        os._exit(128 + number)
    signal.default_int_handler(number, frame)


def _remove_socket() -> None:
    """Remove what a parent that was killed could not: its socket, in a temporary folder of its own."""
    address = getattr(forkserver, "_forkserver")._forkserver_address  # noqa: B009
    parent = os.getppid()
    with contextlib.suppress(OSError):
        # A parent that was killed before this file was imported is told by its successor, which is of another group.
        killed = parent != _PARENT or os.getpgid(parent) != os.getpgrp()
        if killed and isinstance(address, str) and os.path.isabs(address):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))


def _heed_signals(_: object) -> None:
    """Have a process that is about to run be terminated as usual, unless it is a worker, which unblocks them itself."""
    process: Any = multiprocessing.current_process()
    worker = process._target is run_worker or any(
        given is start_worker or isinstance(given, WorkerStart) for given in process._args
    )
    if os.getppid() == _SERVER and not worker:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_TO_JOBS)


atexit.register(_remove_socket)
signal.signal(signal.SIGINT, _leave_quietly)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # see worker_launch
# Workers end with the server; it ends when all of them are gone.
signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_JOBS)
util.register_after_fork(_heed_signals, _heed_signals)
