"""How many bytes of memory this process may still take before the kernel kills something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_SELF = Path("/proc/self/cgroup")


def memory_headroom() -> int:
    """Bytes available to this process: the machine's, or less where a control group (container, SLURM job) is tighter.

    Page cache that the kernel would give up counts as available. Linux; reads a few small files, about 0.1 ms.
    """
    machine = int(psutil.virtual_memory().available)
    return max(0, min([machine, *_cgroup_headrooms(CGROUP_ROOT, CGROUP_OF_SELF)]))


def _cgroup_headrooms(root: Path, of_self: Path) -> Iterator[int]:
    """One figure in bytes for each limited control group from this process's own up to the root; versions 1 and 2."""
    try:
        lines = of_self.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _headrooms_up(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _headrooms_up(root / "memory", path, *names)


def _headrooms_up(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    group = root / path.lstrip("/")
    # Inside a container the path may be the host's: what is not there is skipped; the root itself is the container's.
    for folder in (group, *group.parents):
        if folder != root and root not in folder.parents:
            return
        try:
            most = (folder / limit).read_text().strip()
            if most != "max":
                statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                used = int((folder / usage).read_text())
                yield int(most) - used + int(statistics.get(reclaimable, 0))
        except (OSError, ValueError):
            continue
