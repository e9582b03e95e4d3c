"""A full disk while a cache is built: one line and exit code 7, nothing left behind, what was there before kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_kills import next_build, state_of, whole_cache
from command_line import own_shm
from forked_commands import Commands
from photo_folder import write_folder
from processes import eventually

NUM_PHOTOS = 30
# (workers, room for this share of the file): the last has room for all that HDF5 may need around it.
LIMITS = ((0, 0.05), (0, 0.2), (2, 0.5), (0, 0.8), (0, 0.99), (0, 4.5))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1e9, 1e9))  # old enough for the folder's index to be kept: no build writes it again
    return root


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("commands"), own_shm()) as server:
        yield server


@pytest.fixture(scope="module")
def whole(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return whole_cache(commands, photos, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def earlier(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A cache of the same photos with other settings, which a build replaces."""
    return whole_cache(commands, photos, tmp_path_factory.mktemp("earlier"), "--quality", 50)


@pytest.mark.parametrize(("workers", "share"), LIMITS)
def test_a_limit_on_the_size_of_files(
    commands: Commands, photos: Path, tmp_path: Path, whole: bytes, earlier: bytes, workers: int, share: float
) -> None:
    """RLIMIT_FSIZE, as batch systems set it, holds for libraries and programs of a build as a full disk does."""
    for room_unknown in (False, True):
        folder, before = tmp_path / str(room_unknown), earlier if room_unknown else b""
        folder.mkdir()
        if before:
            (folder / "x.h5").write_bytes(before)
            (folder / "x.h5").chmod(0o600)
        limit = 1000 + int(share * len(whole))  # the line on what is wrong goes to a file here as well
        options = {"small_steps": True, "room_unknown": room_unknown, "file_bytes": limit}
        code, command = commands.run("cache", "build", photos, folder / "x.h5", "--workers", workers, **options)
        assert code == (0 if share > 2 else 7), command.errors
        assert state_of(folder / "x.h5", whole, before) == ("whole" if code == 0 else "earlier" if before else "absent")
        assert set(os.listdir(folder)) <= {"x.h5"}
        if code:
            line = r"LoaderError\[E-NOSPC\] path=.*x\.h5' cause=.*RLIMIT_FSIZE.*: fix=.*\n"
            assert re.fullmatch(line, command.errors), command.errors
        assert eventually(lambda command=command: not command.processes(), 100)
        next_build(commands, photos, folder / "x.h5", whole)
