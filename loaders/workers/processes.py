"""Describe how worker processes ended, have them print their stacks, and kill them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from multiprocessing import util
from typing import Any

from penstock.loaders.system.machine import oom_kills
from penstock.loaders.workers.settle import STACK_SIGNAL

FOR_MEMORY = "for memory"
SERVER_LOST = 255  # the exit code that multiprocessing reports of a process whose fork server died
_STACKS_S = 0.5  # for stacks to reach stderr before the processes are ended


def describe_exit(exitcode: int | None, oom_kills_before: int) -> str:
    """Put an exit code of multiprocessing into words: "killed by SIGKILL for memory", "exited with 1".

    oom_kills_before: what oom_kills() returned when the process was started.
    """
    ending = f"exited with {exitcode}"
    if exitcode == SERVER_LOST:
        ending += ", or lost with its fork server"
    elif exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            ending = f"killed by {signal.Signals(-exitcode).name}"
    killed = exitcode in (-signal.SIGKILL, SERVER_LOST) and oom_kills() > oom_kills_before
    return f"{ending} {FOR_MEMORY}" if killed else ending


def is_stopped(pid: int) -> bool:
    """Say whether the process is halted by SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def kill_at_exit(owner: object, workers: Sequence[Any]) -> None:
    """Have the workers that still run be killed at the end of `owner` or of the program.

    They outlast the SIGTERM by which multiprocessing ends them before it waits for them.
    """
    util.Finalize(owner, kill, args=(workers,), exitpriority=0)


def kill(workers: Sequence[Any]) -> None:
    """Kill the workers that still run."""
    for worker in workers:
        if worker.is_alive():
            worker.kill()


def print_stacks(workers: Sequence[Any], first: int) -> None:
    """Have every worker print its stack to stderr, the process with id `first` first; takes half a second."""
    for process in sorted(workers, key=lambda process: bool(process.pid != first)):
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACK_SIGNAL)
        time.sleep(_STACKS_S / len(workers))  # one after the other, so that their lines do not mix
