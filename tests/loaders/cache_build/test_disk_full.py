"""A full disk while a cache is built: one line and exit code 7, nothing left behind, what was there before kept."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_kills import next_build, state_of, whole_cache
from forked_commands import Command, Commands
from mounts import may_mount, needs_mounts
from photo_folder import write_folder
from processes import eventually

NUM_PHOTOS = 30
TMPFS_BYTES = 4 << 20
# Room for this share of the file, and so much more: the last two have room for all that HDF5 may need around it.
SHARES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 0.99, 3.0, 4.5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1e9, 1e9))  # old enough for the folder's index to be kept: no build writes it again
    return root


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands see a small file system of their own."""
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory, disk: Path) -> Iterator[Commands]:
    mount = f'mount -t tmpfs -o size={TMPFS_BYTES} tmpfs "{disk}" && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    prefix = ("unshare", "-m", "sh", "-c", mount, "sh") if may_mount() else ()
    with Commands(tmp_path_factory.mktemp("commands"), prefix) as server:
        yield server


@pytest.fixture(scope="module")
def whole(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return whole_cache(commands, photos, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def earlier(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A cache of the same photos with other settings, which a build replaces."""
    return whole_cache(commands, photos, tmp_path_factory.mktemp("earlier"), "--quality", 50)


def check(
    command: Command,
    code: int,
    folder: Path,
    whole: bytes,
    earlier: bytes,
    *,
    fits: bool,
    look_in: Path | None = None,
) -> None:
    """What must be true after a build with too little room, or enough. look_in: where the file is opened."""
    dest = folder / "x.h5"
    assert code in (0, 7), command.errors
    assert fits == (code == 0), command.errors
    if look_in is not None and dest.exists():
        dest = Path(shutil.copy(dest, look_in))
    assert state_of(dest, whole, earlier) == ("whole" if code == 0 else "earlier" if earlier else "absent")
    assert [entry.name for entry in folder.iterdir() if entry.name not in ("x.h5", "filler")] == []
    if code:
        assert re.fullmatch(r"LoaderError\[E-NOSPC\] path=.*x\.h5' cause=.*: fix=.*\n", command.errors)
    assert not list(Path.cwd().glob("core*"))


@needs_mounts
def test_a_full_file_system(
    commands: Commands, photos: Path, disk: Path, tmp_path: Path, whole: bytes, earlier: bytes
) -> None:
    """Known before by the room that is free, or met while writing, as when somebody else has filled it since."""
    here = commands.seen(disk)
    outcomes = []
    for number, share in enumerate(SHARES):
        before = earlier if number // 2 % 2 else b""
        dest, filler = here / "x.h5", here / "filler"
        if before:
            dest.write_bytes(before)
            dest.chmod(0o600)
        free = os.statvfs(here).f_bavail * os.statvfs(here).f_frsize
        filler.write_bytes(bytes(max(0, free - int(share * len(whole)))))
        options = {"small_steps": True, "room_unknown": number % 2 == 1}
        code, command = commands.run("cache", "build", photos, disk / "x.h5", "--workers", 0, **options)
        check(command, code, here, whole, before, fits=share > 2, look_in=tmp_path)
        outcomes.append(code)
        filler.unlink()
        code, command = commands.run("cache", "build", photos, disk / "x.h5", "--workers", 0)
        assert (code, command.errors) == (0, "")
        check(command, code, here, whole, b"", fits=True, look_in=tmp_path)
        dest.unlink()
    assert outcomes == [7] * 8 + [0] * 2


def test_a_limit_on_the_size_of_files(
    commands: Commands, photos: Path, tmp_path: Path, whole: bytes, earlier: bytes
) -> None:
    """RLIMIT_FSIZE, as batch systems set it; also that of the programs that a build runs."""
    for number, share in enumerate(SHARES):
        folder, before = tmp_path / str(number), earlier if number // 2 % 2 else b""
        folder.mkdir()
        if before:
            (folder / "x.h5").write_bytes(before)
            (folder / "x.h5").chmod(0o600)
        limit = 1000 + int(share * len(whole))  # the line on what is wrong goes to a file here as well
        options = {"small_steps": True, "room_unknown": number % 2 == 1, "file_bytes": limit}
        code, command = commands.run("cache", "build", photos, folder / "x.h5", "--workers", 0, **options)
        check(command, code, folder, whole, before, fits=share > 2)
        assert code == 0 or "RLIMIT_FSIZE" in command.errors
        next_build(commands, photos, folder / "x.h5", whole)


def test_a_full_disk_is_met_by_workers_too(commands: Commands, photos: Path, tmp_path: Path, whole: bytes) -> None:
    """The builder alone writes; its workers end with it."""
    options = {"small_steps": True, "room_unknown": True, "file_bytes": len(whole) // 2}
    code, command = commands.run("cache", "build", photos, tmp_path / "x.h5", "--workers", 2, **options)
    check(command, code, tmp_path, whole, b"", fits=False)
    assert eventually(lambda: not command.processes(), 100)
    next_build(commands, photos, tmp_path / "x.h5", whole)
