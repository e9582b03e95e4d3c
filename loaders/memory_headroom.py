"""How many bytes of memory this process may still take before the kernel kills something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.loaders.control_groups import CGROUP_OF_SELF, CGROUP_ROOT, control_groups


def memory_headroom() -> int:
    """Bytes available to this process: the machine's, or less where a control group (container, SLURM job) is tighter.

    Page cache that the kernel would give up counts as available. Linux; reads a few small files, about 0.1 ms.
    """
    machine = int(psutil.virtual_memory().available)
    return max(0, min([machine, *_cgroup_headrooms(CGROUP_ROOT, CGROUP_OF_SELF)]))


def memory_limit() -> int | None:
    """Bytes that the tightest control group allows; None without one that is below the machine's memory."""
    machine = int(psutil.virtual_memory().total)
    limits = [limit for limit, _ in _limited_groups(CGROUP_ROOT, CGROUP_OF_SELF) if limit < machine]
    return min(limits, default=None)


def _cgroup_headrooms(root: Path, of_self: Path) -> Iterator[int]:
    """One figure in bytes for each limited control group from this process's own up to the root; versions 1 and 2."""
    for limit, (usage, reclaimable) in _limited_groups(root, of_self):
        yield limit - usage + reclaimable


_NAMES = {  # version 2 -> limit, usage, page cache that can be given up
    True: ("memory.max", "memory.current", ("inactive_file", "active_file")),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
}


def _limited_groups(root: Path, of_self: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    """(limit, (used, of that page cache that can be given up)) in bytes."""
    for folder, unified in control_groups("memory", root, of_self):
        limit, usage, page_cache = _NAMES[unified]
        try:
            most = (folder / limit).read_text().strip()
            if most == "max":
                continue
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # Active pages as well: those of a data set that is read again and again are active, and given up in time.
            pages = sum(int(statistics.get(kind, 0)) for kind in page_cache)
            yield int(most), (int((folder / usage).read_text()), pages)
        except (OSError, ValueError):
            continue
