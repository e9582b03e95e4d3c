"""Turn the death, the silence or the exception of a worker into the LoaderError that is raised for it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from penstock.loaders.workers.processes import FOR_MEMORY, is_stopped, print_stacks
from penstock.pipelines.errors import LoaderError


def death_error(
    ending: str, doing: str = "", *, who: str = "worker process", fix: str | None = None, **where: Any
) -> LoaderError:
    """Return the error for a worker process that met the `ending` of describe_exit; `doing` follows it in the text.

    fix: what to do, unless the kernel killed it for memory, for which E-OOM has its own.
    """
    code, fix = ("E-OOM", None) if ending.endswith(FOR_MEMORY) else ("E-WORKER", fix)
    return LoaderError(code, f"{who} {ending}{doing}", fix=fix, **where)


def silence_error(
    workers: Sequence[Any], pid: int, silent_s: float, doing: str = "", *, fix: str | None = None, **where: Any
) -> LoaderError:
    """Return the error for worker `pid`, silent for `silent_s`, after all `workers` have printed their stacks."""
    # A worker takes no signal while it is stopped, so its state is read first.
    state = "stopped (SIGSTOP)" if is_stopped(pid) else "busy or blocked"
    print_stacks(workers, pid)
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
