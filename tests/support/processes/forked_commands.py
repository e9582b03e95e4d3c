"""`penstock` in processes without start-up time: a server that has imported everything forks for each command.

As a script it is that server, which reads and answers lines of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from processes import CONTRACT_S, eventually, segments_of_nobody

_LONGEST_S = 120.0  # for one command, on a busy machine


def _stat(pid: int) -> list[str]:
    """Return state, parent, group, session and so on (proc(5)) of a living process, else nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] in "ZX" else fields


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:  # it does not exist yet
        return ""


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Command:
    """One `penstock`, the leader of its own session; `temporary`: its TMPDIR, if it has its own."""

    def __init__(self, server: Commands, pid: int, log: Path, temporary: Path | None = None) -> None:
        self.pid, self.temporary, self._server, self._log = pid, temporary, server, log
        self._segments = server.segments()

    def running(self) -> bool:
        """Return whether it has not ended."""
        return bool(_stat(self.pid))

    def wait(self) -> int:
        """Return its exit code, or the negative number of the signal that ended it."""
        status: int | None = self._server.ask(wait=self.pid)["status"]
        assert status is not None, f"it hangs: {self.errors}"
        return status

    def stopped(self) -> bool:
        """Return whether it is stopped by SIGSTOP."""
        return _stat(self.pid)[:1] == ["T"]

    def went_on(self) -> bool:
        """Return whether it is no longer held."""
        return self._log.with_suffix(".on").exists()

    def processes(self) -> dict[int, int]:
        """Return process id -> parent's id, of its living processes: workers, their servers and their children."""
        found = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := _stat(int(entry))) and int(fields[3]) == self.pid:
                found[int(entry)] = int(fields[1])
        return found

    def workers(self) -> list[int]:
        """Return process ids of its workers: children of its fork server, without their own children."""
        processes = self.processes()
        servers = {pid for pid, parent in processes.items() if parent == self.pid and b"forkserver" in _line(pid)}
        return [pid for pid, parent in processes.items() if parent in servers]

    def roles(self) -> dict[int, str]:
        """Return process id -> "main", "tracker", "server", "worker" or "other", of its living processes."""
        workers, found = self.workers(), {}
        for pid in self.processes():
            line = _line(pid)
            if pid == self.pid:
                found[pid] = "main"
            elif b"resource_tracker" in line:
                found[pid] = "tracker"
            elif pid in workers:
                found[pid] = "worker"
            else:
                found[pid] = "server" if b"forkserver" in line else "other"
        return found

    def kill(self, *, group: bool) -> None:
        """Send SIGKILL to it, or to its whole group; do nothing if it is gone."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)

    def end(self, number: signal.Signals, *, group: bool) -> tuple[int, str]:
        """Send the signal to it, or to its group as a terminal does; return exit code and standard error."""
        (os.killpg if group else os.kill)(self.pid, number)
        return self.wait(), self.errors

    def left_behind(self) -> list[str]:
        """Return leftover processes, temporary files and segments."""
        lines = [_line(pid).decode(errors="replace") for pid in self.processes()]
        files = [] if self.temporary is None else map(str, self.temporary.rglob("*"))
        return [*lines, *files, *self._server.segments() - self._segments]

    def leaves_nothing(self, within_s: float = CONTRACT_S) -> bool:
        """Return whether everything is gone in time, by default within the contract's seconds."""
        return eventually(lambda: not self.left_behind(), within_s)

    @property
    def output(self) -> str:
        """Return its standard output so far."""
        return _text(self._log.with_suffix(".out"))

    @property
    def errors(self) -> str:
        """Return its standard error so far."""
        return _text(self._log.with_suffix(".err"))


class Commands:
    """The server. `prefix`: a command that runs it, such as one that gives it its own mounts."""

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self._folder, self._count, self._hold = folder, 0, folder / "hold"
        self._started: list[Command] = []
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(self._hold)
        self._server = subprocess.Popen(
            [*prefix, sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"

    def start(
        self,
        *arguments: object,
        hold: bool = False,
        script: Path | None = None,
        environment: Mapping[str, str] | None = None,
        temporary: Path | None = None,
        **conditions: Any,
    ) -> Command:
        """Run `penstock`, or `script`, with `arguments`. hold: it waits for release(). conditions: see _impose."""
        self._count += 1
        log = self._folder / str(self._count)
        answer = self.ask(
            start=[str(word) for word in arguments],
            log=str(log),
            hold=str(self._hold) if hold else "",
            script=str(script or ""),
            environment={**(environment or {}), **({} if temporary is None else {"TMPDIR": str(temporary)})},
            conditions=conditions,
        )
        self._started.append(command := Command(self, answer["pid"], log, temporary))
        return command

    @contextlib.contextmanager
    def running(self, *arguments: object, script: Path | None = None) -> Iterator[Command]:
        """Run `penstock` (or `script`) with its own temporary folder; kill leftover processes in the end."""
        # Not in a test's own folder: it contains sockets, and their paths are limited to 107 bytes.
        with tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as folder:
            command = self.start(*arguments, script=script, temporary=Path(folder))
            try:
                yield command
            finally:
                for pid in command.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    def run(self, *arguments: object, **conditions: Any) -> tuple[int, Command]:
        """Return (exit code, the command) once it has ended."""
        command = self.start(*arguments, **conditions)
        return command.wait(), command

    def release(self, *commands: Command) -> None:
        """Let held commands continue, all at once."""
        deadline = time.monotonic() + _LONGEST_S
        while not all(command.went_on() for command in commands):
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):  # no command waits yet
                os.close(os.open(self._hold, os.O_WRONLY | os.O_NONBLOCK))
            time.sleep(0.001)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request; return the answer."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def seen(self, path: str | Path) -> Path:
        """Return a path as the commands see it, with their mounts."""
        return Path(f"/proc/{self._server.pid}/root{path}")

    def shared_segments(self) -> list[str]:
        """Return the contents of the commands' own /dev/shm, if they have one."""
        return os.listdir(self.seen("/dev/shm")) if self._has_own_shm() else []

    def segments(self) -> set[str]:
        """Return the contents of the commands' /dev/shm; if it is shared with other programs, only unused segments."""
        return set(self.shared_segments()) if self._has_own_shm() else segments_of_nobody()

    def _has_own_shm(self) -> bool:
        return os.stat(self.seen("/dev/shm")).st_dev != os.stat("/dev/shm").st_dev

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for command in self._started:
            if command.running():  # of a failed test; it may be stopped
                command.kill(group=True)
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                stream.close()
        self._server.wait(_LONGEST_S)


def _serve() -> None:
    # Everything that a build needs, so that nothing is imported while a build is watched.
    import h5py  # noqa: F401
    import rich.progress  # noqa: F401

    import penstock.bench.cli
    import penstock.bench.commands.bench
    import penstock.bench.commands.cache
    import penstock.bench.commands.iterate
    import penstock.bench.commands.synth
    import penstock.bench.commands.train
    import penstock.loaders.cache_build.build
    import penstock.loaders.cache_build.build_ranks
    import penstock.loaders.data.sources.contract

    gc.freeze()  # a command then collects only its own objects at its end
    print("ready", flush=True)
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps({"status": _status(request["wait"])}), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _become(request)
            if request["script"]:
                _run_script(request["script"])
            else:
                penstock.bench.cli.main()
            return
        print(json.dumps({"pid": pid}), flush=True)


def _run_script(path: str) -> None:
    """Run a script as Python does: the names of its module __main__ live as long as the interpreter."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = path
    exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)


def _status(pid: int) -> int | None:
    deadline = time.monotonic() + _LONGEST_S
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    for number, name in ((0, os.devnull), (1, request["log"] + ".out"), (2, request["log"] + ".err")):
        fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.argv = [request["script"] or "penstock", *request["start"]]
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the environment sets it
    _impose(**request["conditions"])
    if request["hold"]:
        with open(request["hold"], "rb") as fifo:
            fifo.read()
        Path(request["log"] + ".on").touch()


def _impose(
    *,
    small_steps: bool = False,
    room_unknown: bool = False,
    file_bytes: int | None = None,
    stop_after: int | None = None,
) -> None:
    """small_steps: chunks of two images, each synced to disk. room_unknown: free space is not checked in advance.

    file_bytes: limit on the size of files. stop_after: SIGSTOP to itself once it has stored this number of images.
    """
    from penstock.loaders.cache_build import chunks as build_chunks
    from penstock.loaders.cache_build import disk_space as build_space
    from penstock.loaders.cache_build import unfinished as build_folder

    if small_steps:
        build_chunks.FIRST_CHUNK_SAMPLES = build_chunks.MAX_CHUNK_SAMPLES = 2
        build_folder.SYNC_BYTES = 1
    if room_unknown:
        build_space.measure_room = lambda folder: (2**60, 2**60)
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if stop_after is not None:
        append = build_folder.BuildFolder.append

        def stopping(self: build_folder.BuildFolder, *arguments: Any) -> None:
            append(self, *arguments)
            if self.num_samples >= stop_after:
                os.kill(os.getpid(), signal.SIGSTOP)

        build_folder.BuildFolder.append = stopping


if __name__ == "__main__":
    _serve()
