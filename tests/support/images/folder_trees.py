"""Trees of files that the tests scan. The files need not be images, since a source does not decode them."""

from __future__ import annotations

import os
import time
from pathlib import Path

Tree = dict[str | bytes, bytes]


def plant(root: Path, tree: Tree | list[str] | list[bytes]) -> Path:
    """Write files: relative path -> content (for a list: the path itself). A path that ends in a slash is a folder."""
    entries = tree if isinstance(tree, dict) else {name: os.fsencode(name) for name in tree}
    root.mkdir(parents=True, exist_ok=True)
    for name, content in entries.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not path.endswith(b"/"):
            with open(path, "wb") as file:
                file.write(content)
    return root


def settle(root: Path) -> Path:
    """Set all times back by a minute: a folder that changed just now is always scanned again."""
    then = time.time() - 60
    for folder, _, files in os.walk(root):
        for name in files:
            os.utime(os.path.join(folder, name), (then, then), follow_symlinks=False)
        os.utime(folder, (then, then))
    return root


def swap_names(one: Path, other: Path) -> None:
    """Swap the names of two files or folders."""
    kept = one.with_name("kept")
    one.rename(kept)
    other.rename(one)
    kept.rename(other)


def rewrite_keeping_mtime(path: Path, data: bytes) -> None:
    """Replace the content but keep the mtime; if the size is also equal, a scan cannot detect it."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip_a_bit(path: Path) -> bytes:
    """Return the JPEG at `path` with one bit of its coded data flipped; this changes all later blocks."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    return bytes(data)
