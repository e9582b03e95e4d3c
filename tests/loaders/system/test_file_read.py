"""Reading one file: what is retried, what is not, what a file that was replaced says."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.loaders.system import file_read
from penstock.loaders.system.file_read import open_regular, read_error, read_unchanged, with_retries
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
    monkeypatch.setattr(file_read.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 300_000])
def test_the_whole_file_is_read(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "a.jpg").write_bytes(content)
    assert read(tmp_path / "a.jpg") == content


def test_a_file_that_differs_is_changed(tmp_path: Path) -> None:
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
def test_a_fifo_in_a_files_place_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jpg")
    with pytest.raises(LoaderError, match="no longer a regular file") as caught:
        read(tmp_path / "a.jpg")  # even with the FIFO's own size and time
    assert caught.value.code == "E-CHANGED"


def test_a_folder_a_device_and_a_socket_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    for name in ("folder.jpg", "device.jpg"):
        with pytest.raises(LoaderError, match="no longer a regular file"):
            read(tmp_path / name)
    monkeypatch.chdir(tmp_path)  # the address of a socket is limited to 108 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jpg")
        with pytest.raises(OSError) as caught:
            read(tmp_path / "socket.jpg")
    assert read_error(caught.value, b"socket.jpg").code == "E-CHANGED"


def test_a_file_that_shrinks_while_it_is_read_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"123456")
    pieces = iter([b"12", b"34", b""])
    monkeypatch.setattr(file_read.os, "pread", lambda fd, size, start: next(pieces))
    with pytest.raises(LoaderError, match="shrank from 6") as caught:
        read(path)
    assert caught.value.code == "E-CHANGED"


@pytest.mark.parametrize("more", [b"", b"7"])
def test_a_file_that_is_written_to_while_it_is_read_is_changed(
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


@pytest.mark.timeout(20)
def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    os.close(open_regular(os.fsencode(tmp_path / "file")))
    os.mkfifo(tmp_path / "fifo")
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file") as caught:
            open_regular(os.fsencode(path))
        assert caught.value.errno == errno.ENXIO
    assert len(os.listdir("/proc/self/fd")) == before


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"123456789")
    monkeypatch.setattr(file_read.os, "read", lambda fd, size, whole=os.read: whole(fd, min(size, 4)))
    assert read(path) == b"123456789"


def test_no_descriptor_is_left_by_errors(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"123")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(LoaderError):
            read(tmp_path / "a.jpg", size=4)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", sorted(file_read.TRANSIENT))
@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_transient_errors_are_retried(number: int, failures: int, delays: list[float]) -> None:
    outcomes: list[OSError | int] = [OSError(number, "flaky") for _ in range(failures)]
    outcomes.append(42)
    retries: list[None] = []

    def call() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    assert with_retries(call, lambda: retries.append(None)) == 42
    assert delays == list(file_read.RETRY_DELAYS_S[:failures]) == [0.1, 0.5, 2.0][:failures]
    assert len(retries) == failures


def test_the_fourth_failure_is_final(delays: list[float]) -> None:
    def call() -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(OSError, match="Stale"):
        with_retries(call)
    assert len(delays) == 3


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.EISDIR])
def test_lasting_errors_are_not_retried(number: int, delays: list[float]) -> None:
    def call() -> None:
        raise OSError(number, "lasting")

    with pytest.raises(OSError, match="lasting"):
        with_retries(call)
    assert delays == []


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
def test_errors_have_their_codes(number: int, code: str) -> None:
    error = read_error(OSError(number, os.strerror(number)), b"a\xff.jpg")
    assert error.code == code
    assert os.strerror(number) in str(error)
    assert str(error).isascii()


def test_a_path_beyond_the_kernels_limit_is_named(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/long" * 1000
    with pytest.raises(OSError, match="too long") as caught:
        read_unchanged(path, 1, 1)
    error = read_error(caught.value, path)
    assert (error.code, error.cause) == ("E-READ", "File name too long")
