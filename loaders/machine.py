"""What this process may use: processors, descriptors, memory."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

from penstock.loaders.memory_headroom import memory_headroom
from penstock.pipelines.errors import LoaderError

_DESCRIPTORS_OF_OTHERS = 32  # what libraries, sockets and the data set's own files may still take


def available_cpus() -> int:
    """Processors this process may run on: its affinity, or less where a cgroup quota is tighter; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota(Path("/sys/fs/cgroup"))
    return max(1, min(allowed, math.ceil(quota) if quota else allowed))


def cgroup_cpu_quota(root: Path) -> float | None:
    """Processors that a control group's quota is worth (cgroup 2, then 1); None without a quota."""
    try:
        limit, period = (root / "cpu.max").read_text().split()[:2]
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        return limit_us / int((root / "cpu" / "cpu.cfs_period_us").read_text()) if limit_us > 0 else None
    except (OSError, ValueError):
        return None


def default_workers() -> int:
    """Worker processes for a loader that was not told: one a processor. The consumer's own work fits in the gaps."""
    return available_cpus()


def many_workers(cpus: int) -> int:
    """As many workers as it pays to have where they wait for storage: four a processor, for that no more than 32."""
    return max(cpus, min(32, 4 * cpus))


def ensure_descriptors(needed: int) -> None:
    """Raise the soft limit of open files so that `needed` more fit; LoaderError E-FD if the hard limit forbids."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _open_descriptors() + needed + _DESCRIPTORS_OF_OTHERS
    if soft == resource.RLIM_INFINITY or soft >= target:
        return
    if hard != resource.RLIM_INFINITY and hard < target:
        raise LoaderError("E-FD", f"open files: need={target} have={hard} (the hard limit)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (target if hard == resource.RLIM_INFINITY else hard, hard))


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def ensure_memory(num_bytes: int, purpose: str) -> None:
    """Raises LoaderError E-MEM if `num_bytes` do not fit into what this process may still take."""
    have = memory_headroom()
    if num_bytes > have:
        raise LoaderError("E-MEM", f"{purpose}: need={num_bytes:,} have={have:,} bytes")


def oom_kills() -> int:
    """How often the kernel killed for memory in this control group; 0 where that cannot be read."""
    try:
        lines = Path("/sys/fs/cgroup/memory.events").read_text().split()
        return int(lines[lines.index("oom_kill") + 1])
    except (OSError, ValueError, IndexError):
        return 0
