"""Resolution of paths that does not trust links planted by other users."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from penstock.pipelines.errors import LoaderError


def real_path(path: str | bytes | os.PathLike[str]) -> bytes:
    """Return os.path.realpath(path), for a path to write to.

    Raises LoaderError E-ACCESS for another user's link in a folder that everyone may write to, such as /tmp; the kernel
    does not follow such links either (fs.protected_symlinks). Raises E-MISUSE if the working folder is needed but was
    removed.
    """
    name = os.fsencode(path)
    try:
        real = os.path.realpath(name)
    except FileNotFoundError:
        fix = "change to a folder that exists (cd, os.chdir)"
        raise LoaderError("E-MISUSE", "the working folder has been removed", fix=fix) from None
    for link in _find_links(name, set()):
        folder, owner = os.stat(os.path.dirname(link) or b"."), os.lstat(link).st_uid
        is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if is_shared and owner not in (os.geteuid(), folder.st_uid):
            cause = "the link of another user in a folder that everyone may write to is not followed"
            raise LoaderError("E-ACCESS", cause, fix="choose another path", path=link)
    return real


def real_place(path: str | bytes | os.PathLike[str]) -> bytes:
    """Return real_path(path) for a file to create. Raises LoaderError E-MISUSE unless its folder exists."""
    real = real_path(path)
    missing = None
    folder = os.path.dirname(real)
    while not os.path.isdir(folder):
        folder, missing = os.path.dirname(folder), folder
    if missing is not None:
        fix = "correct the path, or make the folder (mkdir -p)"
        lack = "is a file, not a folder" if os.path.exists(missing) else "does not exist"
        raise LoaderError("E-MISUSE", f"the folder {os.fsdecode(missing)!a} {lack}", fix=fix, path=real)
    return real


def _find_links(path: bytes, seen: set[bytes]) -> Iterator[bytes]:
    """Yield the links that are followed to reach `path`, in order."""
    prefix = b"/" if path.startswith(b"/") else b""
    for part in path.split(b"/"):
        prefix = os.path.join(prefix, part)
        if os.path.islink(prefix) and prefix not in seen:
            seen.add(prefix)
            yield prefix
            yield from _find_links(os.path.join(os.path.dirname(prefix), os.readlink(prefix)), seen)
