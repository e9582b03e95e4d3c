"""A builder that is killed at each of its system calls in turn, in forks of this process."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.loaders.cache_build import chunks as build_chunks
from penstock.loaders.cache_build import unfinished as build_folder
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.files.image_folder import ImageFolder

SHARDS = 3
CALLS = ("pwrite", "truncate", "fsync", "fdatasync", "replace", "rename", "unlink", "mkdir", "rmdir", "fchmod")


class Killer:
    """Counts calls of functions of `os`, and kills this process at one of them, whose name it writes to `told`."""

    def __init__(self, at: int, calls: tuple[str, ...], told: int) -> None:
        self.at, self.count, self.told = at, 0, told
        for name in calls:
            setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.count == self.at:
                if name == "pwrite":
                    fd, data, offset = arguments
                    call(fd, data[: len(data) // 2], offset)
                os.write(self.told, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
            return call(*arguments, **options)

        return counted


def build(source: Path, dest: Path, at: int, shards: int, told: int) -> None:
    build_chunks.FIRST_CHUNK_SAMPLES = build_chunks.MAX_CHUNK_SAMPLES = 2
    build_folder.SYNC_BYTES = 1
    folder = ImageFolder(source)
    Killer(at, CALLS if shards == 1 else ("replace",), told)
    build_cache(folder, dest, workers=0, shards=shards, replace_stale=True)


def killed(source: Path, dest: Path, at: int, shards: int) -> str:
    """Where the build was killed; "" if it came to its end before that."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            build(source, dest, at, shards, writer)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as told:
        name = told.read()
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return name


def kill_builds(source: Path, folder: Path, before: Path | None = None) -> list[str]:
    """Kill build n, of FOLDER/n/x.h5, at its call n, and return the names of these calls; a write is then half done.

    With `before`, a set of three shards, each build replaces a copy of it and is killed at its renames.
    """
    ImageFolder(source)  # the index is kept, so that no build scans
    names: list[str] = []
    while True:
        own = folder / str(len(names))
        own.mkdir()
        if before is not None:
            shutil.copytree(before, own / "x.h5")
        name = killed(source, own / "x.h5", len(names), 1 if before is None else SHARDS)
        if not name:
            return names
        names.append(name)
