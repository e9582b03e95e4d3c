"""What this process may use: processors, descriptors, memory."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

from penstock.loaders.system.control_groups import CGROUP_OF_SELF, CGROUP_ROOT, control_groups
from penstock.loaders.system.memory_headroom import memory_headroom
from penstock.pipelines.errors import LoaderError

_DESCRIPTORS_OF_OTHERS = 32  # what libraries, sockets and the data set's own files may still take
_MEMORY_FIX = "lower prefetch, workers or batch_size, or raise the memory limit (docker --memory, sbatch --mem)"


def available_cpus() -> int:
    """Processors this process may run on: its affinity, or less where a cgroup quota is tighter; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota(CGROUP_ROOT)
    return max(1, min(allowed, math.ceil(quota) if quota else allowed))


def cgroup_cpu_quota(root: Path, of_self: Path = CGROUP_OF_SELF) -> float | None:
    """Processors that the tightest control group's quota is worth (versions 1 and 2); None without a quota."""
    quotas = []
    for folder, unified in control_groups("cpu", root, of_self):
        try:
            if unified:
                limit, period = (folder / "cpu.max").read_text().split()[:2]
            else:
                limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if limit != "max" and int(limit) > 0:
                quotas.append(int(limit) / int(period))
        except (OSError, ValueError):
            continue
    return min(quotas, default=None)


def default_workers() -> int:
    """Worker processes for a loader that was not told: one a processor. The consumer's own work fits in the gaps."""
    return available_cpus()


def many_workers(cpus: int) -> int:
    """As many workers as it pays to have where they wait for storage: four a processor, for that no more than 32."""
    return max(cpus, min(32, 4 * cpus))


def ensure_descriptors(needed: int) -> tuple[int, int]:
    """The limits (soft, hard) of open files, the soft one raised so that `needed` more fit.

    Raises LoaderError E-FD if the hard limit forbids that.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _open_descriptors() + needed + _DESCRIPTORS_OF_OTHERS
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft, hard
    if hard != resource.RLIM_INFINITY and hard < target:
        more = _round_up(target)
        fix = f"lower workers, or raise the limit of open files (ulimit -n {more}, docker --ulimit nofile={more})"
        raise LoaderError("E-FD", f"open files: need={target} have={hard} (the hard limit)", fix=fix)
    raised = target if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised, hard


def _round_up(number: int) -> int:
    """The next power of two, at least 4096."""
    return max(4096, 1 << (number - 1).bit_length())


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def ensure_memory(num_bytes: int, purpose: str, code: str = "E-MEM") -> None:
    """Raises LoaderError `code` (E-MEM, E-SHM) if `num_bytes` do not fit into what this process may still take."""
    have = memory_headroom()
    if num_bytes > have:
        raise LoaderError(code, f"{purpose}: need={num_bytes:,} have={have:,} bytes", fix=_MEMORY_FIX)


def process_headroom() -> int | None:
    """Processes and threads that this process's control groups still allow; None without a limit."""
    left = []
    for folder, _ in control_groups("pids"):
        try:
            most = (folder / "pids.max").read_text().strip()
            if most != "max":
                left.append(max(0, int(most) - int((folder / "pids.current").read_text())))
        except (OSError, ValueError):
            continue
    return min(left, default=None)


def oom_kills() -> int:
    """How often the kernel killed for memory in this process's control groups; 0 where that cannot be read."""
    counts = [0]
    for folder, unified in control_groups("memory"):
        try:
            words = (folder / ("memory.events" if unified else "memory.oom_control")).read_text().split()
            counts.append(int(words[words.index("oom_kill") + 1]))
        except (OSError, ValueError, IndexError):
            continue
    return max(counts)
