"""Identifies processes uniquely: by boot, pid namespace, process id and start time."""

from __future__ import annotations

import os
import re


def identity() -> str:
    """Return a name that no other process on this machine has or will have: `boot-namespace-id-start`."""
    return f"{_boot()}-{_namespace()}-{os.getpid()}-{start_time(os.getpid())}"


def is_gone(name: str) -> bool:
    """Return whether the process with this identity() has surely ended.

    Unknown, so False, for another boot (which may be another machine) and for another container.
    """
    boot, namespace, pid, start = [*name.split("-"), "", "", "", ""][:4]
    if (boot, namespace) != (_boot(), _namespace()) or not pid.isdigit():
        return False
    return str(start_time(int(pid))) != start


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot (proc(5), field 22); -1 if it has ended."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else -1


def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip().replace("-", "")


def _namespace() -> str:
    """Return the number of this process's pid namespace, "" if unknown."""
    try:
        return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
