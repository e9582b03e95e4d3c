"""Which file system a path is on, from the kernel's table of mounts."""

from __future__ import annotations

import os

import psutil

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


def file_system_of(path: str | os.PathLike[str]) -> str:
    """Return the type of the file system that holds `path`, such as "ext4", "nfs4" or "fuse.sshfs", or "unknown"."""
    real = os.path.realpath(path)
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return "unknown"
    found, longest = "unknown", -1
    for mount in mounts:
        inside = real == mount.mountpoint or real.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and len(mount.mountpoint) >= longest:  # of two mounts at one place the later one is seen
            found, longest = mount.fstype, len(mount.mountpoint)
    return found


def is_remote(kind: str) -> bool:
    """Whether files of such a file system come over a network, or may (FUSE)."""
    return kind in NETWORK or kind.startswith("fuse")
