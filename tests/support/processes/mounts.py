"""Whether tests may mount file systems of their own, the mark of those that must, and a /dev/shm of their own."""

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


def own_shm() -> tuple[str, ...]:
    """What gives a command a /dev/shm of its own, where other programs do not come and go; nothing if not allowed."""
    prefix = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    return prefix if may_mount() else ()


needs_mounts = pytest.mark.skipif(not may_mount(), reason="mounts need root (unshare -m is not permitted)")
