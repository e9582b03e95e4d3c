"""Describe how worker processes failed: their death, silence or exception, as the LoaderError that is raised for it."""

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
    return f"{ending} {_FOR_MEMORY}" if killed else ending


def is_stopped(pid: int) -> bool:
    """Say whether the process is halted by SIGSTOP or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def _print_stacks(workers: Sequence[BaseProcess], first: int) -> None:
    """Have every worker print its stack to stderr, the process with id `first` first; takes half a second."""
    for process in sorted(workers, key=lambda process: bool(process.pid != first)):
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, STACK_SIGNAL)
        time.sleep(_STACKS_S / len(workers))  # one after the other, so that their lines do not mix


def death_error(
    ending: str, doing: str = "", *, who: str = "worker process", fix: str | None = None, **where: Any
) -> LoaderError:
    """Return the error for a worker process that met the `ending` of describe_exit; `doing` follows it in the text.

    fix: what to do, unless the kernel killed it for memory, for which E-OOM has its own.
    """
    code, fix = ("E-OOM", None) if ending.endswith(_FOR_MEMORY) else ("E-WORKER", fix)
    return LoaderError(code, f"{who} {ending}{doing}", fix=fix, **where)


def silence_error(
    workers: Sequence[BaseProcess], pid: int, silent_s: float, doing: str = "", *, fix: str | None = None, **where: Any
) -> LoaderError:
    """Return the error for worker `pid`, silent for `silent_s`, after all `workers` have printed their stacks."""
    # A worker takes no signal while it is stopped, so its state is read first.
    state = "stopped (SIGSTOP)" if is_stopped(pid) else "busy or blocked"
    _print_stacks(workers, pid)
    cause = f"worker process is {state}{doing}: no progress for {silent_s:.0f} s"
    return LoaderError("E-TIMEOUT", cause, fix=fix, worker=pid or None, **where)


def exception_error(
    error: Exception, sample: int, *, path: bytes | str | None = None, worker: int | None = None
) -> tuple[LoaderError, str]:
    """Return the error for an exception at `sample` (-1 for none), and the traceback of one that is not ours.

    worker: id of the worker's process, None for a thread, whose exception becomes the error's cause.
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
    found.__cause__ = error  # for a thread; a message between processes carries no causes, so the text goes with it
    return found, traceback.format_exc() if worker else ""
