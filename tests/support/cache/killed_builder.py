"""A builder that is killed at each of its system calls in turn: `python killed_builder.py SOURCE FOLDER [BEFORE]`.

Build n goes to FOLDER/n/x.h5 and is killed at its call n; a write is then half done. With BEFORE, a set of three
shards, each build replaces a copy of it and is killed at its renames. Prints the calls as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.loaders.cache_build import unfinished as build_folder
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_encode import chunks as build_chunks
from penstock.loaders.sources.image_folder import ImageFolder

SHARDS = 3
CALLS = ("pwrite", "truncate", "fsync", "fdatasync", "replace", "rename", "unlink", "mkdir", "rmdir", "fchmod")


class Killer:
    """Counts calls of functions of `os`, and kills this process at one of them."""

    def __init__(self, at: int, calls: tuple[str, ...]) -> None:
        self.at, self.count = at, 0
        for name in calls:
            setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.count == self.at:
                if name == "pwrite":
                    fd, data, offset = arguments
                    call(fd, data[: len(data) // 2], offset)
                sys.stdout.write(name)
                sys.stdout.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
            return call(*arguments, **options)

        return counted


def build(source: Path, dest: Path, at: int, shards: int) -> None:
    build_chunks.FIRST_CHUNK_SAMPLES = build_chunks.MAX_CHUNK_SAMPLES = 2
    build_folder.SYNC_BYTES = 1
    folder = ImageFolder(source)
    Killer(at, CALLS if shards == 1 else ("replace",))
    build_cache(folder, dest, workers=0, shards=shards, replace_stale=True)


def killed(source: Path, dest: Path, at: int, shards: int) -> str:
    """Where the build was killed; "" if it came to its end before that."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        try:
            build(source, dest, at, shards)
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


if __name__ == "__main__":
    before = sys.argv[3:]
    ImageFolder(sys.argv[1])  # the index is kept, so that no build scans
    names: list[str] = []
    while True:
        folder = Path(sys.argv[2]) / str(len(names))
        folder.mkdir()
        if before:
            shutil.copytree(before[0], folder / "x.h5")
        name = killed(Path(sys.argv[1]), folder / "x.h5", len(names), SHARDS if before else 1)
        if not name:
            break
        names.append(name)
    print(json.dumps(names))
