"""Resources that this process may use: processors, memory, file descriptors, processes."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from penstock.pipelines.errors import LoaderError

Found = TypeVar("Found")
DEV_SHM = "/dev/shm"  # noqa: S108  the kernel stores semaphores and torch's shared tensors there
CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_SELF = Path("/proc/self/cgroup")
_DESCRIPTORS_OF_OTHERS = 32  # reserve for libraries, sockets and the data set's files
_MEMORY_FIX = "lower prefetch, workers or batch_size, or increase the memory limit (docker --memory, sbatch --mem)"
_MEMORY_FILES = {  # whether of version 2 -> limit, usage, prefix of the statistics, mapped files
    True: ("memory.max", "memory.current", "", "file_mapped"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "total_mapped_file"),
}

_RANKS_HERE = (  # variables of torchrun, Open MPI, Intel MPI and MPICH, MVAPICH, SLURM
    *("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"),
    "SLURM_STEP_TASKS_PER_NODE",
)


def control_groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield (folder, is version 2) of the groups with limits of `controller`, from this process's group to the root.

    They belong to a container, a batch job, or the services above them. Inside a container the path of the process's
    group may be the host's. Such folders do not exist in the container, but its root group does.
    """
    try:
        lines = CGROUP_OF_SELF.read_text().splitlines()
    except OSError:
        lines = []
    found = {}
    for line in [*lines, "0::/", f"0:{controller}:/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = CGROUP_ROOT / controller if controllers else CGROUP_ROOT
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == base or base in folder.parents:
                found[folder, not controllers] = True
    yield from found


def _read_groups(controller: str, read: Callable[[Path, bool], Found | None]) -> list[Found]:
    """Return the results of `read` for control_groups(), without None and unreadable groups."""
    found = []
    for folder, unified in control_groups(controller):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if (value := read(folder, unified)) is not None:
                found.append(value)
    return found


# ---- processors


def available_cpus() -> int:
    """Return the number of processors for this process: its affinity, or less for a lower cgroup quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota()
    return max(1, min(allowed, math.ceil(quota) if quota else allowed))


def cgroup_cpu_quota() -> float | None:
    """Return the lowest quota of the control groups in processors; None without a quota."""

    def read(folder: Path, unified: bool) -> float | None:
        if unified:
            limit, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(limit) / int(period) if limit != "max" and int(limit) > 0 else None

    return min(_read_groups("cpu", read), default=None)


def default_workers() -> int:
    """Return the default number of workers: one per processor, because the main process needs little time.

    The ranks of a job share the processors of a machine, or of the control group around them. A launcher may have
    divided them already (`--numa-binding`, `--cpus-per-task`). A rank uses at most its own processors, and at most its
    share.
    """
    return max(1, min(available_cpus(), _shared_cpus() // local_ranks()))


def _shared_cpus() -> int:
    """Return the number of processors that the ranks of a job share: the machine's, or those of a control group."""

    def read(folder: Path, unified: bool) -> int | None:
        text = (folder / ("cpuset.cpus.effective" if unified else "cpuset.effective_cpus")).read_text().strip()
        ranges = [part.partition("-")[::2] for part in text.split(",") if text]
        return sum(int(last or first) - int(first) + 1 for first, last in ranges) or None

    quota, all_cpus = cgroup_cpu_quota(), os.cpu_count() or 1
    return min(all_cpus, *_read_groups("cpuset", read), math.ceil(quota) if quota else all_cpus)


def local_ranks() -> int:
    """Return the number of ranks of this job on this machine, from the launcher's variables; 1 without a launcher.

    A launcher that only sets LOCAL_RANK (Lightning's) has one rank per GPU.
    """
    for name in _RANKS_HERE:  # SLURM's is "4", or "4(x2),3" for several machines, usually beginning with this one
        if (found := re.match(r"\d+", os.environ.get(name, ""))) and int(found[0]):
            return int(found[0])
    rank = os.environ.get("LOCAL_RANK", "")
    if not rank.isdecimal():
        return 1
    import torch

    return max(1, int(rank) + 1, torch.cuda.device_count())


def many_workers(cpus: int) -> int:
    """Return a good number of workers that wait for storage: four per processor up to 32, at least one each."""
    return max(cpus, min(32, 4 * cpus))


# ---- descriptors and processes


def ensure_descriptors(needed: int) -> tuple[int, int]:
    """Increase the soft limit of open files for `needed` more files; return the limits (soft, hard).

    Raises LoaderError E-FD if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _count_descriptors() + needed + _DESCRIPTORS_OF_OTHERS
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft, hard
    if hard != resource.RLIM_INFINITY and hard < target:
        more = max(4096, 1 << (target - 1).bit_length())
        fix = f"lower workers, or increase the limit of open files (ulimit -n {more}, docker --ulimit nofile={more})"
        raise LoaderError("E-FD", f"open files: need={target} have={hard} (the hard limit)", fix=fix)
    raised = target if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised, hard


def _count_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def process_headroom() -> int | None:
    """Return the number of further processes and threads that the control groups allow; None without a limit."""

    def read(folder: Path, unified: bool) -> int | None:
        most = (folder / "pids.max").read_text().strip()
        return None if most == "max" else max(0, int(most) - int((folder / "pids.current").read_text()))

    return min(_read_groups("pids", read), default=None)


# ---- memory


def ensure_memory(num_bytes: int, purpose: str, code: str = "E-MEM") -> None:
    """Raise LoaderError `code` (E-MEM, E-SHM) if `num_bytes` exceed memory_headroom()."""
    have = memory_headroom()
    if num_bytes > have:
        raise LoaderError(code, f"{purpose}: need={num_bytes:,} have={have:,} bytes", fix=_MEMORY_FIX)


def memory_headroom() -> int:
    """Return the bytes that this process can still allocate before the kernel kills a process.

    They are the machine's, or less for a lower limit of a control group (container, SLURM job). Reclaimable page cache
    counts as free. Reads a few small files in about 0.1 ms.
    """
    in_groups = [limit - usage + reclaimable for limit, usage, reclaimable in _read_groups("memory", _read_memory)]
    return max(0, min([int(psutil.virtual_memory().available), *in_groups]))


def memory_limit() -> int | None:
    """Return the lowest memory limit of the control groups; None without one below the machine's memory."""
    total = int(psutil.virtual_memory().total)
    return min((limit for limit, *_ in _read_groups("memory", _read_memory) if limit < total), default=None)


def _read_memory(folder: Path, unified: bool) -> tuple[int, int, int] | None:
    """Return limit, usage, and the reclaimable page cache in the usage of a group, in bytes; None without a limit."""
    limit, usage, prefix, mapped = _MEMORY_FILES[unified]
    most = (folder / limit).read_text().strip()
    if most == "max":
        return None
    lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
    pages = {name: int(count) for name, count in lines}
    inactive, active = (pages.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
    # Includes active pages, such as those of a data set that is read repeatedly, but not running programs.
    free = inactive + max(0, active - pages.get(mapped, 0))
    return int(most), int((folder / usage).read_text()), free


def oom_kills() -> int:
    """Return the number of out-of-memory kills in this process's control groups; 0 if unknown."""

    def read(folder: Path, unified: bool) -> int:
        words = (folder / ("memory.events" if unified else "memory.oom_control")).read_text().split()
        return int(words[words.index("oom_kill") + 1])

    return max(_read_groups("memory", read), default=0)
