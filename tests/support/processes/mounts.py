"""Tests that mount file systems: whether they may, the mark of those that must, and a private /dev/shm."""

from __future__ import annotations

import functools
import shutil
import subprocess

import pytest


@functools.cache
def may_mount() -> bool:
    """Return whether this user may create a mount namespace (usually root)."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def own_shm() -> tuple[str, ...]:
    """Return a prefix that gives a command a private /dev/shm, without other programs; empty if not allowed."""
    prefix = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    return prefix if may_mount() else ()


needs_mounts = pytest.mark.skipif(not may_mount(), reason="mounts need root (unshare -m is not permitted)")
