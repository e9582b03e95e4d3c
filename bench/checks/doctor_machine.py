"""Checks the resources of the machine for a loader: processors, memory, /dev/shm, open files, processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.bench.checks.finding import DoctorSettings, Finding, run_check
from penstock.loaders.drop_in.recommended_settings import TUNED_PREFETCH
from penstock.loaders.run.workers.needs import SEMAPHORES, Needs, ensure_batches, ensure_dev_shm, ensure_processes
from penstock.loaders.system.machine import (
    DEV_SHM,
    available_cpus,
    cgroup_cpu_quota,
    default_workers,
    ensure_descriptors,
    memory_headroom,
    memory_limit,
    process_headroom,
)
from penstock.pipelines.errors import LoaderError, size_text

_NODES = Path("/sys/devices/system/node")
_TIGHT = 0.5  # share of the free memory above which a loader's need is a warning
_LITTLE_PROCESS, _LITTLE_GPU_PROCESS = 2 << 30, 64 << 30  # address space, bytes: CUDA maps every GPU's memory


def machine_findings(settings: DoctorSettings, needs: Needs) -> Iterator[Finding]:
    """Yield one finding for each resource that the kernel limits."""
    yield processors(settings)
    yield numa_nodes(settings)
    yield memory(needs)
    yield process_limits(settings)
    yield dev_shm(settings, needs)
    yield run_check("open files", lambda: _descriptors(needs))
    yield run_check("processes", lambda: _processes(needs))


def processors(settings: DoctorSettings) -> Finding:
    """Compare the processors available under affinity and control groups with the number of workers."""
    affinity, quota = len(os.sched_getaffinity(0)), cgroup_cpu_quota()
    cpus, there = available_cpus(), psutil.cpu_count() or affinity
    text = f"{cpus} of {there} (affinity {affinity}, " + ("no quota)" if quota is None else f"quota {quota:g})")
    if quota is not None and quota < 1:
        return Finding("processors", "warn", text, "give the job a whole processor (docker --cpus, sbatch -c)")
    if settings.workers is not None and settings.workers > cpus:
        return Finding("processors", "warn", f"{text}, for {settings.workers} workers", f"--workers {cpus}")
    return Finding("processors", "ok", text)


def numa_nodes(settings: DoctorSettings) -> Finding:
    """Count the memory nodes and those on which this process may run."""
    folders = sorted(_NODES.glob("node[0-9]*"))
    nodes, allowed = len(folders), os.sched_getaffinity(0)
    mine = [folder.name[4:] for folder in folders if any((folder / f"cpu{cpu}").exists() for cpu in allowed)]
    text = f"{nodes or 'unknown'}" + (f", running on {', '.join(mine)}" if nodes > 1 else "")
    if len(mine) > 1 and settings.device != "cpu":
        fix = f"bind each rank to its GPU's node: numactl --cpunodebind={mine[0]} --membind={mine[0]} ..."
        return Finding("NUMA nodes", "warn", text, fix)
    return Finding("NUMA nodes", "ok", text)


def memory(needs: Needs) -> Finding:
    """Compare the memory available under control groups with the needs of batches and workers."""

    def check() -> str:
        ensure_batches(needs)
        limit = memory_limit()
        limited = "no limit below the machine's" if limit is None else f"limit {size_text(limit)}"
        return f"{size_text(memory_headroom())} free ({limited}), needs at least {size_text(needs.total_bytes)}"

    found = run_check("memory", check)
    if found.state == "ok" and needs.total_bytes > _TIGHT * memory_headroom():
        fix = "model and images need more: lower --workers, --prefetch or --batch-size, or raise the limit"
        return found._replace(state="warn", fix=fix)
    return found


def process_limits(settings: DoctorSettings) -> Finding:
    """Check the memory limits of one process, which some batch systems set."""
    least = _LITTLE_PROCESS if settings.device == "cpu" else _LITTLE_GPU_PROCESS
    kinds = (("address space", resource.RLIMIT_AS, least), ("data", resource.RLIMIT_DATA, _LITTLE_PROCESS))
    limits = [(name, resource.getrlimit(kind)[0], enough) for name, kind, enough in kinds]
    set_limits = [(name, soft, enough) for name, soft, enough in limits if soft != resource.RLIM_INFINITY]
    text = ", ".join(f"{name} {size_text(soft)}" for name, soft, _ in set_limits) or "no limit"
    if any(soft < enough for _, soft, enough in set_limits):
        return Finding("memory of a process", "warn", text, "ulimit -v unlimited; ulimit -d unlimited")
    return Finding("memory of a process", "ok", text)


def dev_shm(settings: DoctorSettings, needs: Needs) -> Finding:
    """Compare /dev/shm with the needs of the backends' semaphores and of a DataLoader's batches.

    The backends' own batches are elsewhere; those of the drop-in and of torch's DataLoader are there.
    """
    found = run_check(DEV_SHM, lambda: f"{size_text(ensure_dev_shm(needs.semaphore_bytes, SEMAPHORES))} free")
    if found.state == "fail":
        return found
    workers = default_workers() if settings.workers is None else settings.workers
    under_way = workers * (settings.prefetch or TUNED_PREFETCH) + 1
    num_bytes = under_way * settings.batch_size * settings.size**2 * 3 * 4
    try:
        ensure_dev_shm(num_bytes if workers else 0, f"{under_way} float32 batches of a DataLoader")
    except LoaderError as error:
        return Finding(DEV_SHM, "warn", f"enough for create_loader; {error.cause}", error.fix)
    return found._replace(found=f"{found.found}, a DataLoader with float32 batches needs {size_text(num_bytes)}")


def _descriptors(needs: Needs) -> str:
    soft, hard = ensure_descriptors(needs.descriptors)
    return f"limit {_limit(soft)} (hard {_limit(hard)}), needs {needs.descriptors}"


def _limit(number: int) -> str:
    return "none" if number == resource.RLIM_INFINITY else f"{number:,}"


def _processes(needs: Needs) -> str:
    ensure_processes(needs)
    have = process_headroom()
    return f"{'no limit' if have is None else f'{have:,} more allowed'}, needs {needs.processes}"
