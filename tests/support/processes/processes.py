"""Running processes, open files and leftovers, read from /proc."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import psutil

_MEASURED_S = 0.2  # of processor time: several periods of a control group's quota

CONTRACT_S = 5.0  # time in which a lost worker is reported, and after which nothing of a command is left


_before: set[threading.Thread | psutil.Process] = set()


def note_leftovers() -> None:
    """Exclude the current threads and processes from the results of the functions below.

    An earlier test left them: a thread is blocked, or the traceback of an error still refers to an iterator and
    workers.
    """
    _before.clear()
    _before.update(threading.enumerate(), psutil.Process().children(recursive=True))


def threads() -> list[threading.Thread]:
    """Return the threads of loaders that this test has started."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
    return [thread for thread in ours if thread not in _before]


def worker_pids() -> set[int]:
    """Return processes that the children of this one (a fork server) have started."""
    found: set[int] = set()
    for child in psutil.Process().children():
        try:
            found |= {grandchild.pid for grandchild in child.children(recursive=True) if grandchild not in _before}
        except psutil.NoSuchProcess:
            continue
    return found


def fork_server_pid() -> int:
    """Return the process id of multiprocessing's current fork server; an earlier one may not have ended."""
    pid: int = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009
    return pid


def child_pids() -> set[int]:
    """Return worker processes, however they were started: all descendants except those of multiprocessing itself."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            line, parent = " ".join(process.cmdline()), process.ppid()
        except psutil.NoSuchProcess:
            continue
        serves = "resource_tracker" in line or ("forkserver" in line and parent == os.getpid())
        if not serves and process not in _before:
            found.add(process.pid)
    return found


def processes_with(variable: str, value: str) -> dict[int, str]:
    """Return process id -> command line of every living process that has the environment variable."""
    wanted, found = f"{variable}={value}".encode(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
            except OSError:
                continue
    return found


def segments_of_nobody() -> set[str]:
    """Return files in /dev/shm that no living process has mapped: leftovers, even if other programs are running."""
    segments = {entry.name for entry in Path("/dev/shm").iterdir()}
    for entry in Path("/proc").iterdir():
        if segments and entry.name.isdigit():
            try:
                maps = (entry / "maps").read_text(errors="replace")
            except OSError:
                continue
            segments = {name for name in segments if f"/dev/shm/{name}" not in maps}
    return segments


def slowness() -> float:
    """Measure wall time divided by processor time on this machine now, which quotas and neighbours increase."""
    started, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < _MEASURED_S:
        pass
    return max(1.0, (time.monotonic() - started) / _MEASURED_S)


def in_time(started: float, within_s: float = CONTRACT_S) -> bool:
    """Return whether `within_s` have not passed since `started` (monotonic), or longer on a machine that is slow now.

    The slowness counts twice: a command waits for its processes, and each of them for a processor.
    """
    taken = time.monotonic() - started
    return taken < within_s or taken < within_s * slowness() ** 2


def eventually(condition: Callable[[], bool], within_s: float = CONTRACT_S) -> bool:
    """Return whether `condition` becomes true in time; it is polled."""
    started = time.monotonic()
    while not condition():
        if not in_time(started, within_s):
            return False
        time.sleep(0.02)
    return True
