"""The build lock: one holder, dead ones replaced by one taker, live ones waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from processes import eventually

from penstock.loaders.cache_build import lock as build_lock
from penstock.loaders.cache_build.lock import BuildLock, Owner
from penstock.pipelines.errors import LoaderError

HOLD = """
import sys, time
from penstock.loaders.cache_build.lock import BuildLock
lock = BuildLock(sys.argv[1].encode())
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def left_by(path: Path, owner: Owner) -> None:
    path.write_text(json.dumps(asdict(owner)))


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def here(**fields: object) -> Owner:
    return replace(Owner.this_process(), **fields)  # type: ignore[arg-type]


def takes(path: Path) -> bool:
    with BuildLock(os.fsencode(path)) as lock:
        try:
            lock.acquire(wait=False)
        except LoaderError:
            return False
        assert json.loads(path.read_text())["pid"] == os.getpid()
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()
    return True


def test_it_is_held_and_released(tmp_path: Path) -> None:
    assert takes(tmp_path / "lock")
    assert takes(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


def test_a_live_owner_is_named_and_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LoaderError, match=rf"E-CACHE.*process {holder.pid} on "):
            BuildLock(os.fsencode(path)).acquire(wait=False)
        assert json.loads(path.read_text())["pid"] == holder.pid
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert takes(path)
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize(
    ("fields", "dead"),
    [
        ({"pid": -1}, True),
        ({"start": 1}, True),  # its process id has gone to another process since
        ({}, False),
        ({"host": "elsewhere"}, False),
        ({"pids": "pid:[1]"}, False),  # another container
        ({"boot": "earlier"}, False),
    ],
)
def test_who_is_taken_for_dead_at_once(tmp_path: Path, fields: dict[str, object], dead: bool) -> None:
    if fields.get("pid") == -1:
        fields = {"pid": dead_process()}
    left_by(tmp_path / "lock", here(**fields))
    assert takes(tmp_path / "lock") is dead


def test_a_process_from_before_the_last_boot_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    left_by(path, here(boot="earlier"))
    long_ago = time.time() - 2 * build_lock.SILENT_S
    os.utime(path, (long_ago, long_ago))
    assert takes(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"host": 1, "pid": "x", "boot": 0, "start": 0, "pids": 0}'])
def test_an_owner_that_cannot_be_looked_up_is_dead_once_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "lock"
    path.write_bytes(content)
    assert not takes(path)
    monkeypatch.setattr(build_lock, "SILENT_S", 0.3)
    told: list[str] = []
    with BuildLock(os.fsencode(path)) as lock:
        lock.acquire(on_wait=told.append)
        assert told
        assert set(told) == {"a process that is not known"}


def test_a_heartbeat_keeps_an_owner_elsewhere_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    monkeypatch.setattr(build_lock, "SILENT_S", 0.4)
    monkeypatch.setattr(build_lock, "POLL_S", 0.05)
    monkeypatch.setattr(build_lock, "HEARTBEAT_S", 0.05)
    with BuildLock(os.fsencode(path)) as held:
        held.acquire()
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "host": "elsewhere"}))  # in place: the same file
        looks: list[str] = []

        def look(owner: str) -> None:
            looks.append(owner)
            if len(looks) == 20:  # well over SILENT_S
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            BuildLock(os.fsencode(path)).acquire(on_wait=look)
        held.check()
    assert not path.exists()


class Race:
    """Threads that all want one lock, and how many of them had it at once."""

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


def test_one_of_many_takes_over_from_the_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_lock, "POLL_S", 0.001)
    pid = dead_process()
    for _ in range(100):
        left_by(tmp_path / "lock", here(pid=pid))
        race = Race(tmp_path / "lock")
        race.run(4)
        assert race.failures == []
        assert race.most == 1
        assert list(tmp_path.iterdir()) == []


def test_an_owner_that_was_taken_for_dead_is_told(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lost = BuildLock(os.fsencode(path))
    lost.acquire()
    left_by(path, here(pid=dead_process()))
    with BuildLock(os.fsencode(path)) as taker:
        taker.acquire(wait=False)
        with pytest.raises(LoaderError, match="E-CACHE"):
            lost.check()
        lost.release()
        taker.check()  # and it did not take the new owner's lock away
    assert not path.exists()


def test_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(build_lock.os, "link", no_links)
    assert takes(tmp_path / "lock")
    left_by(tmp_path / "lock", here())
    assert not takes(tmp_path / "lock")
    left_by(tmp_path / "lock", here(pid=dead_process()))
    assert takes(tmp_path / "lock")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_lock_that_is_no_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "lock")
    with pytest.raises(LoaderError, match=r"E-CACHE.*lock.*not a regular file: fix=remove it"):
        BuildLock(os.fsencode(tmp_path / "lock")).acquire()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_folder_that_takes_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        BuildLock(os.fsencode(tmp_path / "none" / "lock")).acquire()


def test_what_a_killed_process_left_while_locking_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ("lock." + "0" * 16)
    left.write_text("")
    assert takes(tmp_path / "lock")
    assert left.exists()  # its process may be about to link it
    long_ago = time.time() - 2 * build_lock.SILENT_S
    os.utime(left, (long_ago, long_ago))
    assert takes(tmp_path / "lock")
    assert not left.exists()


def test_release_ends_the_heartbeat(tmp_path: Path) -> None:
    before = threading.active_count()
    lock = BuildLock(os.fsencode(tmp_path / "lock"))
    lock.acquire()
    lock.release()
    lock.release()
    assert eventually(lambda: threading.active_count() == before)
