"""The control groups that this process is in: a container's, a batch job's, those of the services above them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_SELF = Path("/proc/self/cgroup")


class ControlGroup(NamedTuple):
    """The folder of a control group, and whether it is one of version 2."""

    folder: Path
    unified: bool


def control_groups(controller: str, root: Path = CGROUP_ROOT, of_self: Path = CGROUP_OF_SELF) -> Iterator[ControlGroup]:
    """The groups in which `controller` may limit this process, from its own up to the root, of versions 1 and 2.

    Inside a container the path of its own group may be the host's: such folders are not there, but the root is, which
    is the container's.
    """
    try:
        lines = of_self.read_text().splitlines()
    except OSError:
        lines = []
    found = {}
    for line in [*lines, "0::/", f"0:{controller}:/"]:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder == base or base in folder.parents:
                found[ControlGroup(folder, not controllers)] = True
    yield from found
