"""Which file system a path is on, from the kernel's table of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb3",
    "9p",
    "glusterfs",
    "afs",
    "wekafs",
    "panfs",
)


def file_system_of(path: str | os.PathLike[str], mounts: Path = MOUNTS) -> str:
    """The type of the file system that holds `path`, such as "ext4", "nfs4" or "fuse.sshfs"; "unknown" if not told."""
    real = os.path.realpath(path)
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return "unknown"
    found, longest = "unknown", -1
    for line in lines:
        # proc(5): ... root, mount point, options, optional fields, "-", type, source, options
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after.strip():
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of two mounts at one place the later one is seen
            found, longest = after.split()[0], len(point)
    return found


def is_remote(kind: str) -> bool:
    """Whether files of such a file system come over a network, or may (FUSE)."""
    return kind in NETWORK or kind.startswith("fuse")
