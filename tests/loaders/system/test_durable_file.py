"""Private files and folders, atomic replacement of files, and where a path leads."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import pytest

from penstock.loaders.system import durable_file
from penstock.loaders.system.durable_file import (
    ensure_writable,
    make_private_folder,
    open_private,
    replace_file,
    sync_folder,
    write_all,
)
from penstock.loaders.system.real_path import real_path, real_place
from penstock.pipelines.errors import LoaderError


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777])
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("any_umask")
def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    os.close(open_private(os.fsencode(tmp_path / "file"), os.O_RDWR))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    make_private_folder(os.fsencode(tmp_path / "a" / "b"))
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o755)
    make_private_folder(os.fsencode(tmp_path / "a"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("number", "told"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_failing_sync_of_a_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: bool
) -> None:
    def fail(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output") if told else nullcontext():
        sync_folder(os.fsencode(tmp_path))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("private", [True, False])
def test_a_place_is_tested_and_left_unchanged(tmp_path: Path, private: bool) -> None:
    ensure_writable(tmp_path / "a" / "b" / "file", private=private)
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to("file")
    ensure_writable(tmp_path / "link", private=private)
    assert (tmp_path / "file").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["a", "file", "link"]


def test_a_full_disk_is_reported_when_a_place_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(LoaderError, match="E-NOSPC"):
        ensure_writable(tmp_path / "file")
    assert os.listdir(tmp_path) == []


def test_pipes_and_devices_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        ensure_writable(path)
        with pytest.raises(LoaderError, match=r"E-ACCESS.*not a regular file"):
            ensure_writable(path, private=True)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        open_private(os.fsencode(tmp_path / "link"), os.O_RDWR | os.O_TRUNC)
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_all_bytes_are_written_even_by_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(durable_file.os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:7], offset))
    fd = open_private(os.fsencode(tmp_path / "file"), os.O_RDWR)
    write_all(fd, bytes(range(100)), 50)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(50) + bytes(range(100))


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_a_failed_replacement_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "file"
    replace_file(os.fsencode(path), b"old")

    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(OSError, match="No space"):
            replace_file(os.fsencode(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
    replace_file(os.fsencode(path), lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"


def test_two_writers_of_one_file_never_share_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have the same process number, in different containers."""
    path = os.fsencode(tmp_path / "file")
    monkeypatch.setattr(os, "getpid", lambda: 1)

    def meanwhile(file: BinaryIO) -> None:
        file.write(b"outer, ")
        replace_file(path, b"inner")
        file.write(b"whole")

    replace_file(path, meanwhile)
    assert (tmp_path / "file").read_bytes() == b"outer, whole"
    assert os.listdir(tmp_path) == ["file"]


def test_a_writer_removes_files_that_killed_ones_left_an_hour_ago(tmp_path: Path) -> None:
    left = [tmp_path / f"file.{end}" for end in ("tmp.4242", "tmp.0123456789abcdef", "a_b1c2d3.tmp")]
    for path in [*left, tmp_path / "file.tmp.notes", tmp_path / "other.tmp.4242", tmp_path / "file.tmp.4343"]:
        path.touch()
        if path.name != "file.tmp.4343":
            os.utime(path, (1e9, 1e9))
    (tmp_path / "file.tmp.4444").symlink_to("other.tmp.4242")  # a new link to an old file
    replace_file(os.fsencode(tmp_path / "file"), b"new")
    kept = ["file", "file.tmp.4343", "file.tmp.4444", "file.tmp.notes", "other.tmp.4242"]
    assert sorted(os.listdir(tmp_path)) == kept


# ---- where a path leads ----

STRANGER = 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize("name", ["direct.h5", "indirect.h5", "folder/x.h5"])
def test_a_link_that_another_user_planted_is_not_followed(tmp_path: Path, name: str) -> None:
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    mine.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "direct.h5").symlink_to(mine / "x")
    (shared / "folder").symlink_to(mine)
    (shared / "indirect.h5").symlink_to("direct.h5")
    for find in (real_path, real_place):
        assert find(shared / name).startswith(os.fsencode(mine))  # the user's own links are followed
    for link in ("direct.h5", "folder"):
        os.lchown(shared / link, STRANGER, STRANGER)
    for find in (real_path, real_place, ensure_writable):
        with pytest.raises(LoaderError, match=r"E-ACCESS.*shared/(direct|folder).*another user"):
            find(shared / name)
    os.chown(shared, STRANGER, -1)  # the owner of a folder may put links into it
    assert real_place(shared / name).startswith(os.fsencode(mine))


def test_circular_links_and_relative_paths_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    assert real_path("circle") == os.fsencode(tmp_path / "circle")
    assert real_place("x.h5") == os.fsencode(tmp_path / "x.h5")
    (tmp_path / "file").touch()
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the folder '[^']*/file' is a file, not a folder"):
        real_place("file/deeper/x.h5")
