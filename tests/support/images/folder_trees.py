"""Image trees that these tests scan: the files need not be images, since a source does not decode."""

from __future__ import annotations

import os
import time
from pathlib import Path

Tree = dict[str | bytes, bytes]


def plant(root: Path, tree: Tree | list[str] | list[bytes]) -> Path:
    """Write files: relative path -> content (from a list: the path itself); one that ends in a slash is a folder."""
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
    """Date everything a minute back: a folder that changed just now is always scanned again."""
    then = time.time() - 60
    for folder, _, files in os.walk(root):
        for name in files:
            os.utime(os.path.join(folder, name), (then, then), follow_symlinks=False)
        os.utime(folder, (then, then))
    return root
