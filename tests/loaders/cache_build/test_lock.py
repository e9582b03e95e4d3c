"""The build lock: one owner, which is named; a killed owner does not block others."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from penstock.loaders.cache_build import lock as build_lock
from penstock.loaders.cache_build.lock import BuildLock
from penstock.pipelines.errors import LoaderError


def takes(path: Path) -> bool:
    with BuildLock(os.fsencode(path)) as lock:
        try:
            lock.acquire(wait=False)
        except LoaderError:
            return False
        assert path.read_text().split()[0] == str(os.getpid())
        assert path.stat().st_mode & 0o777 == 0o600
        lock.check()
    assert not path.exists()
    return True


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As on a file system without file locks."""

    def missing(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", missing)


@pytest.mark.parametrize("without_flock", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], indirect=True)
@pytest.mark.usefixtures("without_flock")
def test_the_lock_works_without_kernel_locks(tmp_path: Path) -> None:
    assert takes(tmp_path / "lock")
    with BuildLock(os.fsencode(tmp_path / "lock")) as held:
        held.acquire()
        with pytest.raises(LoaderError, match=rf"E-CACHE.*process {os.getpid()} on .* is building it"):
            BuildLock(os.fsencode(tmp_path / "lock")).acquire(wait=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"x\ny\n", b'{"host": "a", "pid": 1}', b"\xff\n\xff"])
def test_the_lock_file_of_a_killed_owner_does_not_matter(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    (tmp_path / "lock").chmod(0o600)
    held = filelock.UnixFileLock(tmp_path / "lock")
    reported: list[str] = []

    def release(owner: str) -> None:
        reported.append(owner)
        held.release()

    with held, BuildLock(os.fsencode(tmp_path / "lock")) as lock:
        lock.acquire(on_wait=release)
        assert reported == ["an unknown process"]
    assert takes(tmp_path / "lock")


class Race:
    """Threads that compete for one lock; counts how many held it at once."""

    def __init__(self, path: Path) -> None:
        self.path, self.guard = path, threading.Lock()
        self.holders = self.most = 0
        self.failures: list[BaseException] = []

    def run(self, threads: int) -> None:
        runners = [threading.Thread(target=self.hold) for _ in range(threads)]
        for runner in runners:
            runner.start()
        for runner in runners:
            runner.join()

    def hold(self) -> None:
        try:
            for _ in range(50):
                with BuildLock(os.fsencode(self.path)) as lock:
                    lock.acquire()
                    self.count(1)
                    lock.check()
                    self.count(-1)
        except BaseException as error:
            self.failures.append(error)

    def count(self, more: int) -> None:
        with self.guard:
            self.holders += more
            self.most = max(self.most, self.holders)


def test_only_one_of_many_threads_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each owner removes the file while others wait for it."""
    monkeypatch.setattr(build_lock, "POLL_S", 0.0001)
    race = Race(tmp_path / "lock")
    race.run(4)
    assert race.failures == []
    assert race.most == 1
    assert list(tmp_path.iterdir()) == []


def test_an_owner_notices_that_its_lock_was_removed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with BuildLock(os.fsencode(path)) as lost, BuildLock(os.fsencode(path)) as successor:
        lost.acquire()
        path.unlink()
        with pytest.raises(LoaderError, match=r"E-CACHE.*the lock file was removed"):
            lost.check()
        successor.acquire(wait=False)
        with pytest.raises(LoaderError, match="E-CACHE"):
            lost.check()
        lost.release()
        lost.release()
        successor.check()
    assert not path.exists()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_lock_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "lock")
    with pytest.raises(LoaderError, match=r"E-CACHE.*lock.*not a regular file: fix=remove it"):
        BuildLock(os.fsencode(tmp_path / "lock")).acquire()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
