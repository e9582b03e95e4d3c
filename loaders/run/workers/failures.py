"""Errors for the death, silence or exception of a worker process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from penstock.loaders.run.workers.worker_setup import STACK_SIGNAL
from penstock.loaders.system.machine import oom_kills
from penstock.pipelines.errors import LoaderError

_FOR_MEMORY = "for memory"
SERVER_LOST = 255  # multiprocessing's exit code for a process after its fork server died
_STACKS_S = 0.5  # time for stacks to reach stderr before the processes are ended


def describe_exit(exitcode: int | None, oom_kills_before: int) -> str:
    """Return the text for an exit code of multiprocessing: "killed by SIGKILL for memory", "exited with 1".

    oom_kills_before: result of oom_kills() when the process was started.
    """
    ending = f"exited with {exitcode}"
    if exitcode == SERVER_LOST:
        ending += ", or lost with its fork server"
    elif exitcode is not None and exitcode < 0:
        with contextlib.suppress(ValueError):
            ending = f"killed by {signal.Signals(-exitcode).name}"
    killed = exitcode in (-signal.SIGKILL, SERVER_LOST) and oom_kills() > oom_kills_before
    return f"{ending} {_FOR_MEMORY}" if killed else ending


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped by SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def _print_stacks(workers: Sequence[BaseProcess], first: int) -> None:
    """Make every worker print its stack to stderr, beginning with process `first`. Takes half a second."""
    for process in sorted(workers, key=lambda process: bool(process.pid != first)):
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACK_SIGNAL)
        time.sleep(_STACKS_S / len(workers))  # one after the other, so that their lines do not mix


def death_error(
    ending: str, doing: str = "", *, who: str = "worker process", fix: str | None = None, **where: Any
) -> LoaderError:
    """Return the error for a worker process with the `ending` from describe_exit; `doing` follows it in the text.

    fix: what to do; not used if the kernel killed the process for memory, because E-OOM has its own fix.
    """
    code, fix = ("E-OOM", None) if ending.endswith(_FOR_MEMORY) else ("E-WORKER", fix)
    return LoaderError(code, f"{who} {ending}{doing}", fix=fix, **where)


def silence_error(
    workers: Sequence[BaseProcess], pid: int, silent_s: float, doing: str = "", *, fix: str | None = None, **where: Any
) -> LoaderError:
    """Return the error for worker `pid`, silent for `silent_s`, after all `workers` have printed their stacks."""
    # A stopped worker does not receive signals, so its state is read first.
    state = "stopped (SIGSTOP)" if is_stopped(pid) else "busy or blocked"
    _print_stacks(workers, pid)
    cause = f"worker process is {state}{doing}: no progress for {silent_s:.0f} s"
    return LoaderError("E-TIMEOUT", cause, fix=fix, worker=pid or None, **where)


def exception_error(
    error: Exception, sample: int, *, path: bytes | str | None = None, worker: int | None = None
) -> tuple[LoaderError, str]:
    """Return the error for an exception at `sample` (-1 for none), and the traceback of an exception of other code.

    worker: id of the worker process. None for a thread; its exception becomes the error's cause.
    """
    if isinstance(error, LoaderError):
        located = error.locate(worker=worker)
        located.__cause__ = error.__cause__
        is_users = worker is not None and error.code == "E-DATASET" and error.__cause__ is not None
        return located, traceback.format_exc() if is_users else ""
    where: dict[str, Any] = {"sample": sample if sample >= 0 else None, "path": path, "worker": worker}
    if isinstance(error, MemoryError):
        found = LoaderError("E-MEM", f"out of memory at this sample ({str(error) or 'no details'})", **where)
    else:
        fix = "see the traceback; with workers=0 a debugger stops there"
        found = LoaderError("E-DATASET", f"{type(error).__name__}: {error}", fix=fix, **where)
    found.__cause__ = error  # for a thread; messages between processes lose the cause, so they contain the text
    return found, traceback.format_exc() if worker else ""
