"""Builders that are killed, cut off from power or met by others: no file ever lies, the next build succeeds."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cache_kills import (
    Undisturbed,
    build,
    state_of,
    stored_images,
    undisturbed,
    whole_cache,
)
from command_line import own_shm
from forked_commands import Commands
from photo_folder import write_folder
from power_cut import DiskRecorder, after_a_cut
from processes import eventually

from penstock.loaders.cache import hdf5_file
from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache.hdf5_cache import open_cache
from penstock.loaders.cache_build import unfinished as build_folder
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.verify import verify_cache
from penstock.loaders.sources.image_folder import ImageFolder

NUM_PHOTOS, FEW = 40, 8
OTHER = ("--quality", 50)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("commands"), own_shm()) as server:
        yield server


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_folder(tmp_path_factory.mktemp("few"), FEW)
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1e9, 1e9))  # old enough for the folder's index to be kept: no build writes it again
    return root


@pytest.fixture(scope="module")
def known(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(commands, photos, tmp_path_factory.mktemp("undisturbed"), 0)


@pytest.fixture(scope="module")
def earlier(commands: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A cache of the same photos with other settings, which a build replaces."""
    return whole_cache(commands, photos, tmp_path_factory.mktemp("earlier"), *OTHER)


# ---- killed


# ---- cut off from power


def test_cut_off_from_power_before_each_call(
    commands: Commands, few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was waited for is there, of the rest any part: the file is whole or absent, and the next build makes it."""
    folder, source = tmp_path / "recorded", ImageFolder(few)
    folder.mkdir()
    (tmp_path / "earlier").mkdir()
    earlier = whole_cache(commands, few, tmp_path / "earlier", *OTHER)
    monkeypatch.setattr("penstock.loaders.cache_encode.chunks.MAX_CHUNK_SAMPLES", 2)
    monkeypatch.setattr("penstock.loaders.cache_encode.chunks.FIRST_CHUNK_SAMPLES", 2)
    with monkeypatch.context() as patch:
        patch.setattr(build_folder, "SYNC_BYTES", 2500)
        recorder = DiskRecorder(folder, patch)
        build_cache(source, folder / "x.h5", workers=0)
        recorder.end()
    whole = (folder / "x.h5").read_bytes()
    assert len(recorder.moments) > 25
    draw = random.Random(11)
    states, resumed = set(), set()
    for number, disk in enumerate(3 * recorder.moments):
        dest = tmp_path / str(number) / "x.h5"
        dest.parent.mkdir()
        if before := number % 2:
            dest.write_bytes(earlier)
        after_a_cut(disk, folder, dest.parent, draw)
        states.add(state_of(dest, whole, earlier if before else b""))
        resumed.add(build_cache(source, dest, workers=0, replace_stale=True).files[0].resumed)
        assert dest.read_bytes() == whole
        assert os.listdir(dest.parent) == ["x.h5"]
    assert states == {"absent", "earlier", "whole"}
    assert len(resumed) > 2


# ---- met by others


def test_one_of_several_is_killed_while_it_builds(
    commands: Commands, photos: Path, tmp_path: Path, known: Undisturbed
) -> None:
    """Another goes on with what it had done."""
    dest = tmp_path / "x.h5"
    started = [build(commands, photos, dest, 0, small_steps=True, stop_after=10)]
    assert eventually(started[0].stopped, 100)  # it still lives, and the others wait for it
    started += [build(commands, photos, dest, 0, small_steps=True) for _ in range(3)]
    for command in started[1:]:
        while f"waiting: process {started[0].pid} on " not in command.errors:
            assert command.running(), command.errors
            time.sleep(0.01)
    assert not dest.exists()
    assert stored_images(dest) == 10
    started[0].kill(group=False)
    assert started[0].wait() == -9
    assert [command.wait() for command in started[1:]] == [0] * 3, [command.errors for command in started]
    told = [command.output for command in started[1:]]
    assert sum("nothing to do" in output for output in told) == 2
    assert sum("; 10 were there" in output for output in told) == 1
    assert state_of(dest, known.whole) == "whole"
    assert os.listdir(tmp_path) == ["x.h5"]


def test_a_reader_that_opens_the_file_as_it_is_replaced(
    tmp_path: Path, known: Undisturbed, earlier: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the earlier one, all of it, and is not told of damage."""
    dest, other = tmp_path / "x.h5", tmp_path / "other.h5"
    for path, content in ((dest, earlier), (other, known.whole)):
        path.write_bytes(content)
        path.chmod(0o600)
    check = hdf5_file._check_owner

    def replaced_meanwhile(*arguments: Any) -> None:
        if other.exists():
            other.replace(dest)
        check(*arguments)

    monkeypatch.setattr(hdf5_file, "_check_owner", replaced_meanwhile)
    cache = open_cache(dest)
    assert dest.read_bytes() == known.whole
    assert cache.about[0].coded == Encoding(quality=50)
    assert verify_cache(cache).sound
    assert open_cache(dest).about[0].coded == Encoding()
