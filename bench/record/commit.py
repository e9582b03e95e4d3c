"""Finds the commit of this source tree, also for a copy without its repository."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("pipelines", "loaders", "bench")
_SUFFIXES = (".py", ".c", ".h", ".jinja")
_EXPORTED = ".commit"  # left out of git


def find_commit(root: Path = ROOT) -> str | None:
    """Return the commit of a source tree, with "+changes" if it differs; None for an installed package.

    A copy without its repository contains the file written by `export_commit`.
    """
    try:
        if (root / ".git").exists():
            changed = _git(root, "status", "--porcelain", "--untracked-files=no")
            return _git(root, "rev-parse", "--short=12", "HEAD") + ("+changes" if changed else "")
        commit, digest = (root / _EXPORTED).read_text("ascii").split()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    same = digest == _digest(root)
    return commit.removesuffix("+changes") + ("+changes" if not same or commit.endswith("+changes") else "")


def export_commit(root: Path, to: Path) -> str:
    """Write the commit of the tree `root` into the folder `to`, which will contain a copy of it; return the commit.

    Raises ValueError if the commit is unknown.
    """
    commit = find_commit(root)
    if commit is None:
        raise ValueError(f"{root} is neither a git repository nor a copy of one with the file {_EXPORTED}")
    (to / _EXPORTED).write_text(f"{commit} {_digest(root)}\n", "ascii")
    return commit


def _digest(root: Path) -> str:
    """Return a digest of the package's source files, to detect a later change of the copy."""
    found = hashlib.blake2b(digest_size=16)
    files = [path for package in _PACKAGES for path in (root / package).rglob("*") if path.suffix in _SUFFIXES]
    for path in sorted(files):
        content = path.read_bytes()
        found.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
