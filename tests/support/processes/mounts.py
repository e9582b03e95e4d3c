"""Whether tests may mount file systems of their own, and the mark of those that must."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest


@functools.cache
def may_mount() -> bool:
    """Whether this user may have a mount namespace (root, mostly)."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not may_mount(), reason="mounts need root (unshare -m is not permitted)")
