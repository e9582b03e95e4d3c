"""How many bytes of memory this process may still take before the kernel kills something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.loaders.system.control_groups import CGROUP_OF_SELF, CGROUP_ROOT, control_groups


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


_NAMES = {  # whether of version 2 -> limit, usage, prefix of the statistics, mapped files
    True: ("memory.max", "memory.current", "", "file_mapped"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "total_mapped_file"),
}


def _limited_groups(root: Path, of_self: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    """(limit, (used, of that page cache that can be given up)) in bytes."""
    for folder, unified in control_groups("memory", root, of_self):
        limit, usage, prefix, mapped = _NAMES[unified]
        try:
            most = (folder / limit).read_text().strip()
            if most == "max":
                continue
            lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            pages = {name: int(count) for name, count in lines}
            inactive, active = (pages.get(f"{prefix}{kind}_file", 0) for kind in ("inactive", "active"))
            # Active pages as well, such as those of a data set that is read again and again, but not running programs.
            free = inactive + max(0, active - pages.get(mapped, 0))
            yield int(most), (int((folder / usage).read_text()), free)
        except (OSError, ValueError):
            continue
