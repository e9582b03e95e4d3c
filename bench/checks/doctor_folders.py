"""The folders that Penstock writes to by itself: temporary files, the profile, indexes of scanned folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.bench.checks.file_systems import file_system_of, is_remote
from penstock.bench.checks.finding import Finding, checked
from penstock.loaders.profile import profile_path
from penstock.loaders.sources.saved_index import cache_folder
from penstock.loaders.system.needs import ensure_temporary_folder
from penstock.pipelines.errors import size_text

_LITTLE = 256 << 20  # bytes


def folder_findings() -> Iterator[Finding]:
    """One finding for each of them; none is needed to load but the temporary one."""
    yield temporary_folder()
    yield profile_folder()
    yield index_folder()


def temporary_folder() -> Finding:
    """Sockets of the fork server and of tensors lie there, and the caches of `parity` and `selftest`."""
    found = checked("temporary folder", ensure_temporary_folder)
    if found.state == "fail":
        return found
    kind, free = file_system_of(found.found), shutil.disk_usage(found.found).free
    told = f"{found.found} ({kind}, {size_text(free)} free)"
    if is_remote(kind):
        return Finding(found.name, "warn", told, "use a local disk: export TMPDIR=/tmp")
    if free < _LITTLE:
        return Finding(found.name, "warn", told, "free some of it, or export TMPDIR=/another/folder")
    return found._replace(found=told)


def profile_folder() -> Finding:
    """Where `penstock bench --save` keeps its choice."""
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
    """Where the index of a scanned folder is kept for the next start."""
    folder = cache_folder()
    if folder is None or not can_write(Path(os.fsdecode(folder))):
        fix = "a data folder is scanned again at each start: export XDG_CACHE_HOME=/a/folder/of/yours"
        return Finding("index folder", "warn", "no folder that is yours and can be written", fix)
    return Finding("index folder", "ok", os.fsdecode(folder))


def can_write(folder: Path) -> bool:
    """Whether files can be made in `folder`: root may everything, except on what is mounted read-only."""
    try:
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    except OSError:
        return False
    return not read_only and os.access(folder, os.W_OK | os.X_OK)
