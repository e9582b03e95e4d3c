"""Reading one file: what is retried, what is not, and the error for a replaced file."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from penstock.loaders.system import file_read, retries
from penstock.loaders.system.file_read import open_regular, read_error, read_unchanged
from penstock.loaders.system.retries import with_retries
from penstock.pipelines.errors import LoaderError


def read(path: Path, size: int | None = None, mtime_ns: int | None = None) -> bytes:
    status = path.stat()
    return read_unchanged(
        os.fsencode(path),
        status.st_size if size is None else size,
        status.st_mtime_ns if mtime_ns is None else mtime_ns,
    )


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 300_000])
def test_the_whole_file_is_read(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "a.jpg").write_bytes(content)
    assert read(tmp_path / "a.jpg") == content


def test_a_file_that_differs_is_reported_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"12345")
    with pytest.raises(LoaderError, match="5 bytes now, 6 when") as caught:
        read(path, size=6)
    assert caught.value.code == "E-CHANGED"
    with pytest.raises(LoaderError, match="modified since") as caught:
        read(path, mtime_ns=1)
    assert caught.value.code == "E-CHANGED"
    assert caught.value.path == os.fsencode(path)


@pytest.mark.timeout(20)
def test_a_path_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo.jpg")
    before = len(os.listdir("/proc/self/fd"))
    for name in ("folder.jpg", "device.jpg", "fifo.jpg"):
        with pytest.raises(LoaderError, match="no longer a regular file") as changed:
            read(tmp_path / name)  # even with its size and time
        assert changed.value.code == "E-CHANGED"
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(os.fsencode(tmp_path / name))
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.chdir(tmp_path)  # the address of a socket is limited to 108 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
        with pytest.raises(OSError) as caught:
            read(tmp_path / "socket.jpg")
    assert read_error(caught.value, b"socket.jpg").code == "E-CHANGED"


def test_a_file_that_shrinks_while_it_is_read_is_reported_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"123456")
    pieces = iter([b"12", b"34", b""])
    monkeypatch.setattr(file_read.os, "pread", lambda fd, size, start: next(pieces))
    with pytest.raises(LoaderError, match="shrank from 6") as caught:
        read(path)
    assert caught.value.code == "E-CHANGED"


def test_a_part_is_assembled_from_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of at most three bytes, as after a signal or the limit of 2 GiB: no byte is missing or repeated."""
    path, asked = tmp_path / "a.jpg", []
    path.write_bytes(bytes(range(20)))
    status, whole = path.stat(), os.pread

    def short(fd: int, size: int, at: int) -> bytes:
        asked.append((at, size))
        return whole(fd, min(size, 3), at)

    monkeypatch.setattr(file_read.os, "pread", short)
    assert read(path) == bytes(range(20))
    asked.clear()
    about = os.fsencode(path), status.st_size, status.st_mtime_ns
    assert read_unchanged(*about, 5, 7) == bytes(range(5, 12))
    assert asked == [(5, 7), (8, 4), (11, 1)]


@pytest.mark.parametrize("more", [b"", b"7"])
def test_a_file_that_is_written_to_while_it_is_read_is_reported_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"123456")
    os.utime(path, ns=(1, 1))

    def rewritten(fd: int, size: int, at: int, pread: Callable[[int, int, int], bytes] = os.pread) -> bytes:
        start = pread(fd, 3, at)
        path.write_bytes(b"abcdef" + more)
        if more:
            os.utime(path, ns=(1, 1))
        return start + pread(fd, size - 3, at + 3)

    monkeypatch.setattr(file_read.os, "pread", rewritten)
    with pytest.raises(LoaderError, match="written to while it was read") as caught:
        read(path)
    assert caught.value.code == "E-CHANGED"


@pytest.mark.parametrize("number", [*sorted(retries.TRANSIENT), errno.ENOENT, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("failures", [0, 1, 3, 4])
def test_transient_errors_are_retried_three_times_and_others_never(
    number: int, failures: int, delays: list[float]
) -> None:
    outcomes: list[OSError | int] = [*(OSError(number, "flaky") for _ in range(failures)), 42]
    repeated: list[None] = []

    def call() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    allowed = 3 if number in retries.TRANSIENT else 0
    with pytest.raises(OSError, match="flaky") if failures > allowed else nullcontext():
        assert with_retries(call, lambda: repeated.append(None)) == 42
    assert delays == [0.1, 0.5, 2.0][: min(failures, allowed)]
    assert len(repeated) == min(failures, allowed)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOENT, "E-MISSING"),
        (errno.ENOTDIR, "E-MISSING"),
        (errno.EACCES, "E-ACCESS"),
        (errno.EPERM, "E-ACCESS"),
        (errno.EMFILE, "E-FD"),
        (errno.EIO, "E-READ"),
        (errno.EREMOTEIO, "E-READ"),
    ],
)
def test_errors_get_their_codes(number: int, code: str) -> None:
    error = read_error(OSError(number, os.strerror(number)), b"a\xff.jpg")
    assert error.code == code
    assert os.strerror(number) in str(error)
    assert str(error).isascii()


def test_a_path_beyond_the_kernels_limit_is_reported(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/long" * 1000
    with pytest.raises(OSError, match="too long") as caught:
        read_unchanged(path, 1, 1)
    error = read_error(caught.value, path)
    assert (error.code, error.cause) == ("E-READ", "File name too long")
