"""Disk contents after a power cut: everything that was synced, and any part of the later writes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cache_kills import state_of

from penstock.loaders.cache_build import chunks, unfinished
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.files.image_folder import ImageFolder

_SECTOR = 512


@dataclass
class _File:
    """Durable bytes of a file, and later writes (offset, data) and sizes (size, None), in order."""

    durable: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)


Disk = dict[str, _File]


class DiskRecorder:
    """Records each call of `os` that changes files under `folder`; `moments` are the disk states before each call.

    New names count as durable at once, the worst case: a name may reach the disk before the content of its file.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._files = str(folder) + "/", Disk()
        self.moments: list[Disk] = []
        notes: dict[str, Callable[..., None]] = {
            "pwrite": lambda fd, data, offset: self._note(fd, (offset, bytes(data))),
            "truncate": lambda fd, size: self._note(fd, (size, None)),
            "fsync": self._synced,
            "fdatasync": self._synced,
            "replace": self._renamed,
            "rename": self._renamed,
            "unlink": lambda path: self._files.pop(os.fsdecode(path), None),
        }
        for name, note in notes.items():
            patch.setattr(os, name, self._noted(getattr(os, name), note))

    def _noted(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self.moments.append({path: _File(file.durable, [*file.pending]) for path, file in self._files.items()})
            note(*arguments)
            return call(*arguments)

        return noted

    def end(self) -> None:
        """Record the last moment."""
        self.moments.append(self._files)

    def _path(self, fd: int) -> str:
        return os.readlink(f"/proc/self/fd/{fd}")

    def _note(self, fd: int, change: tuple[int, bytes | None]) -> None:
        path = self._path(fd)
        if path.startswith(self._folder):
            self._files.setdefault(path, _File()).pending.append(change)

    def _synced(self, fd: int) -> None:
        file = self._files.get(self._path(fd))
        if file is not None:
            file.durable, file.pending = _applied(file, lambda: True), []

    def _renamed(self, old: bytes, new: bytes) -> None:
        before, after = os.fsdecode(old), os.fsdecode(new)
        for path in [path for path in self._files if path == before or path.startswith(before + "/")]:
            self._files[after + path.removeprefix(before)] = self._files.pop(path)


def _applied(file: _File, kept: Callable[[], bool]) -> bytes:
    """Return the content if only the changes for which `kept` is true reached the disk; asked per sector of a write."""
    content = bytearray(file.durable)
    for at, data in file.pending:
        if data is None:
            if kept():
                content[at:] = bytes(max(0, at - len(content)))
            continue
        for start in range(0, len(data), _SECTOR):
            if kept():
                part = data[start : start + _SECTOR]
                content.extend(bytes(max(0, at + start - len(content))))
                content[at + start : at + start + len(part)] = part
    return bytes(content)


def after_a_cut(disk: Disk, folder: Path, elsewhere: Path, draw: random.Random) -> None:
    """Write to `elsewhere` a possible state of `folder` after a power cut at that moment, without locks."""
    share = draw.choice((0.0, 0.5, 0.95, 1.0))
    for path, file in disk.items():
        if ".lock" not in path:
            copy = elsewhere / Path(path).relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.parent.chmod(0o700)
            copy.write_bytes(_applied(file, lambda: draw.random() < share))
            copy.chmod(0o600)


def cut_builds(
    source: ImageFolder, folder: Path, count: int, draw: random.Random, earlier: bytes = b""
) -> Iterator[tuple[str, int]]:
    """Yield (state of the file, images reused by the next build) for a power cut before each call of a build.

    Synced data is kept, and any part of the rest. The file is then whole, absent or the earlier one (every second build
    replaces an earlier file), and the next build completes it.
    """
    recorded = folder / "recorded"
    recorded.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_CHUNK_SAMPLES", "MAX_CHUNK_SAMPLES"):
            patch.setattr(chunks, name, 2)
        with pytest.MonkeyPatch.context() as watched:
            watched.setattr(unfinished, "SYNC_BYTES", 2500)
            recorder = DiskRecorder(recorded, watched)
            build_cache(source, recorded / "x.h5", workers=0)
            recorder.end()
        whole = (recorded / "x.h5").read_bytes()
        assert len(recorder.moments) > 25
        for number in range(count or len(recorder.moments)):
            dest, before = folder / "cut" / "x.h5", earlier if number % 2 else b""
            dest.parent.mkdir()
            if before:
                dest.write_bytes(before)
            after_a_cut(recorder.moments[number % len(recorder.moments)], recorded, dest.parent, draw)
            state = state_of(dest, whole, before)
            file = build_cache(source, dest, workers=0, replace_stale=True).files[0]
            assert dest.read_bytes() == whole
            assert os.listdir(dest.parent) == ["x.h5"]
            shutil.rmtree(dest.parent)
            yield state, file.resumed
