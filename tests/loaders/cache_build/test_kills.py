"""Builders that are killed, interrupted, cut off from power or out of space leave no wrong file; the next succeeds."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cache_kills import build, next_build, state_of, stored_images, whole_cache
from forked_commands import Commands
from interrupts import Interruption
from photo_folder import write_folder
from power_cut import cut_builds
from processes import eventually

from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.lock import BuildLock
from penstock.loaders.cache_build.verify import verify_cache
from penstock.loaders.data.cache import hdf5_file
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.image_folder import ImageFolder

NUM_PHOTOS, TRIALS = 8, 16
# (workers, space for this share of the file, whether the build sees unlimited free space). The last has space for
# everything that HDF5 may need besides.
LIMITS = ((0, 0.05, False), (2, 0.9, True), (0, 7, True))


@pytest.fixture(scope="module")
def whole(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return whole_cache(commands, photos, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def earlier(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A cache of the same photos with other settings, which a build replaces."""
    return whole_cache(commands, photos, tmp_path_factory.mktemp("earlier"), "--quality", 50)


def test_a_power_cut_before_any_call_leaves_no_wrong_file(photos: Path, tmp_path: Path, earlier: bytes) -> None:
    found = list(cut_builds(ImageFolder(photos), tmp_path, 0, random.Random(11), earlier))
    assert {state for state, _ in found} == {"absent", "earlier", "whole"}
    assert len({resumed for _, resumed in found}) > 2


def check_not_locked(dest: bytes) -> None:
    """Check that the next builder does not wait; the lock file may exist."""
    with BuildLock(dest + b".lock") as lock:
        lock.acquire(wait=False)
        lock.check()
    assert not os.path.exists(dest + b".lock")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="check points are found as Python 3.11 has them")
# Ctrl-C between open() and the assignment of its result leaves a file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_build_continues_after_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    source = ImageFolder(write_folder(tmp_path / "photos", 4))

    def build(dest: Path) -> bytes:
        build_cache(source, dest, encoding=Encoding(kind="raw", resize=24), workers=0)
        return dest.read_bytes()

    build(tmp_path / "first.h5")
    whole = Interruption()
    expected = whole.run(lambda: build(tmp_path / "whole.h5"))
    struck = 0
    for trial, at in enumerate(whole.draw(TRIALS)):
        dest, interruption = tmp_path / f"{trial}.h5", Interruption(at)
        try:
            interruption.run(lambda dest=dest: build(dest))  # type: ignore[misc]
        except KeyboardInterrupt:
            struck += 1
        else:  # a slow machine renews the lock more often, and passes other check points
            assert not interruption.struck
        check_not_locked(os.fsencode(dest))
        assert build(dest) == expected, interruption.struck
    assert struck > TRIALS / 2


def test_another_builder_continues_after_a_kill(commands: Commands, photos: Path, tmp_path: Path, whole: bytes) -> None:
    """The next builder reuses the chunks of the killed one."""
    dest = tmp_path / "x.h5"
    started = [build(commands, photos, dest, 0, small_steps=True, stop_after=6)]
    assert eventually(started[0].stopped, 100)  # it still runs, and the others wait for it
    started += [build(commands, photos, dest, 0, small_steps=True) for _ in range(2)]
    for command in started[1:]:
        while f"waiting: process {started[0].pid} on " not in command.errors:
            assert command.running(), command.errors
            time.sleep(0.01)
    assert not dest.exists()
    assert stored_images(dest) == 6
    started[0].kill(group=False)
    assert started[0].wait() == -9
    assert [command.wait() for command in started[1:]] == [0] * 2, [command.errors for command in started]
    outputs = [command.output for command in started[1:]]
    assert sum("nothing to do" in output for output in outputs) == 1
    assert sum("; 6 came from a build that was stopped" in output for output in outputs) == 1
    assert state_of(dest, whole) == "whole"
    assert os.listdir(tmp_path) == ["x.h5"]


def test_a_reader_that_opens_the_file_during_its_replacement_gets_the_earlier_one(
    tmp_path: Path, whole: bytes, earlier: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader gets the whole earlier file, and no damage is reported."""
    dest, other = tmp_path / "x.h5", tmp_path / "other.h5"
    for path, content in ((dest, earlier), (other, whole)):
        path.write_bytes(content)
        path.chmod(0o600)
    check = hdf5_file._check_owner

    def replaced_meanwhile(*arguments: Any) -> None:
        if other.exists():
            other.replace(dest)
        check(*arguments)

    monkeypatch.setattr(hdf5_file, "_check_owner", replaced_meanwhile)
    cache = open_cache(dest)
    assert dest.read_bytes() == whole
    assert cache.about[0].coded == Encoding(quality=50)
    assert verify_cache(cache).sound
    assert open_cache(dest).about[0].coded == Encoding()


@pytest.mark.parametrize(("workers", "share", "room_unknown"), LIMITS)
def test_a_limit_on_file_sizes_is_reported_as_a_full_disk(
    commands: Commands,
    photos: Path,
    tmp_path: Path,
    whole: bytes,
    earlier: bytes,
    workers: int,
    share: float,
    room_unknown: bool,
) -> None:
    """Batch systems set RLIMIT_FSIZE; libraries and programs of a build handle it like a full disk."""
    dest, before = tmp_path / "x.h5", earlier if room_unknown else b""
    if before:
        dest.write_bytes(before)
        dest.chmod(0o600)
    limit = 1000 + int(share * len(whole))  # the error line also goes to a file here
    options = {"small_steps": True, "room_unknown": room_unknown, "file_bytes": limit}
    code, command = commands.run("cache", "build", photos, dest, "--workers", workers, **options)
    assert code == (0 if share > 2 else 7), command.errors
    assert state_of(dest, whole, before) == ("whole" if code == 0 else "earlier" if before else "absent")
    assert set(os.listdir(tmp_path)) <= {"x.h5"}
    if code:
        line = r"LoaderError\[E-NOSPC\] path=.*x\.h5' cause=.*RLIMIT_FSIZE.*: fix=.*\n"
        assert re.fullmatch(line, command.errors), command.errors
    assert eventually(lambda: not command.processes(), 100)
    next_build(commands, photos, dest, whole)
