"""Checks the folders that Penstock writes to, and finds the file system of a path."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.bench.checks.finding import Finding, run_check
from penstock.loaders.front.profile import profile_path
from penstock.loaders.run.workers.needs import ensure_temporary_folder
from penstock.loaders.system.saved_columns import cache_folder
from penstock.pipelines.errors import size_text

_LITTLE_BYTES = 256 << 20
NETWORK = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p"),
    *("glusterfs", "afs", "wekafs", "panfs"),
)


def file_system_of(path: str | os.PathLike[str]) -> str:
    """Return the type of the file system of `path`, such as "ext4", "nfs4" or "fuse.sshfs", or "unknown"."""
    real = os.path.realpath(path)
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return "unknown"
    found, longest = "unknown", -1
    for mount in mounts:
        inside = real == mount.mountpoint or real.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and len(mount.mountpoint) >= longest:  # the later of two mounts at one place is visible
            found, longest = mount.fstype, len(mount.mountpoint)
    return found


def is_remote(kind: str) -> bool:
    """Return whether files of such a file system come, or may come (FUSE), over a network."""
    return kind in NETWORK or kind.startswith("fuse")


def folder_findings() -> Iterator[Finding]:
    """Yield one finding for each folder; only the temporary one is needed to load."""
    yield temporary_folder()
    yield profile_folder()
    yield index_folder()


def temporary_folder() -> Finding:
    """Check the temporary folder for the sockets of the fork server and the caches of parity and selftest."""
    found = run_check("temporary folder", ensure_temporary_folder)
    if found.state == "fail":
        return found
    kind, free = file_system_of(found.found), shutil.disk_usage(found.found).free
    text = f"{found.found} ({kind}, {size_text(free)} free)"
    if is_remote(kind):
        return Finding(found.name, "warn", text, "use a local disk: export TMPDIR=/tmp")
    if free < _LITTLE_BYTES:
        return Finding(found.name, "warn", text, "free some of it, or export TMPDIR=/another/folder")
    return found._replace(found=text)


def profile_folder() -> Finding:
    """Check the folder where `penstock bench --save` stores its choice."""
    path = profile_path("default")
    folder = path.parent
    if path.parts[0] == "~":
        fix = "only `bench --save` and backend='auto' need it: export XDG_CONFIG_HOME=/a/folder"
        return Finding("profile", "warn", "HOME is not set", fix)
    there = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    if not can_write(there):
        fix = "only `bench --save` needs it: export XDG_CONFIG_HOME=/a/folder/that/can/be/written"
        return Finding("profile", "warn", f"{folder} cannot be written", fix)
    return Finding("profile", "ok", f"{path}" if path.exists() else f"{folder} (none saved yet)")


def index_folder() -> Finding:
    """Check the folder that keeps the index of a scanned data folder for the next start."""
    folder = cache_folder()
    if folder is None or not can_write(Path(os.fsdecode(folder))):
        fix = "a data folder is scanned again at each start: export XDG_CACHE_HOME=/a/folder/of/yours"
        return Finding("index folder", "warn", "no folder that you own and can write", fix)
    return Finding("index folder", "ok", os.fsdecode(folder))


def can_write(folder: Path) -> bool:
    """Return whether files can be created in `folder`: even root cannot write on a read-only mount."""
    try:
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError:
        return False
    return not read_only and os.access(folder, os.W_OK | os.X_OK)
