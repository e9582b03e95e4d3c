"""Says how a worker process ended, asks it for its stack, and receives its messages."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from penstock.loaders.workers.settle import STACK_SIGNAL

SERVER_LOST = 255  # what multiprocessing makes of it
_STACKS_S = 0.5  # for stacks to reach stderr before the processes are ended


def describe_exit(exitcode: int | None) -> str:
    """An exit code of multiprocessing in words: "killed by SIGKILL", "exited with 1"."""
    if exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-exitcode).name}"
    if exitcode == SERVER_LOST:
        return "lost with its fork server, or exited with 255"
    return f"exited with {exitcode}"


def is_stopped(pid: int) -> bool:
    """Whether the process stands still under SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def tell_stacks(workers: Sequence[Any], first: int) -> None:
    """Have every worker print its stack to stderr, process id `first` before the others; takes half a second."""
    for process in sorted(workers, key=lambda process: bool(process.pid != first)):
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACK_SIGNAL)
        time.sleep(_STACKS_S / len(workers))  # one after the other, or their lines mix


def receive_message(reader: Any, size: int, poll_s: float, stalled: Callable[[], None]) -> io.BytesIO:
    """Connection._recv that calls `stalled`, which may raise, every `poll_s` without a byte.

    The rest of a message whose sender is dead or stopped never comes, and no end of file tells of it: the other workers
    hold the pipe open.
    """
    received = io.BytesIO()
    while received.tell() < size:
        if not connection.wait([reader], timeout=poll_s):
            stalled()
            continue
        chunk = os.read(reader.fileno(), size - received.tell())
        if not chunk:
            raise EOFError("all worker processes are gone")
        received.write(chunk)
    return received
