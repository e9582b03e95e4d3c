"""The command `penstock` as a user starts it: in separate processes, watched from outside."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

from mounts import own_shm
from processes import CONTRACT_S, eventually, processes_with, segments_of_nobody

from penstock.bench import cli

_TAG = "PENSTOCK_TEST_RUN"
COMMAND = (sys.executable, "-m", "penstock.bench.cli")


def penstock(
    *arguments: object, env: Mapping[str, str] | None = None, prefix: Sequence[str] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `penstock` to its end. prefix: a command that runs it, such as ("taskset", "-c", "0")."""
    return subprocess.run(
        [*prefix, *COMMAND, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **options,
    )


def penstock_here(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Like `penstock`, but in this process, which has imported torch, for tests that need no separate process."""
    out, errors = io.StringIO(), io.StringIO()
    command = ["penstock", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", command),
        mock.patch.dict(os.environ, env or {}),
        mock.patch.object(cli, "exit_on_signals"),
        mock.patch.object(warnings, "formatwarning", warnings.formatwarning),  # main replaces it
        mock.patch.object(cli.app, "registered_commands", []),  # main adds them
        mock.patch.object(cli.app, "registered_groups", []),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as left:
            code = int(str(left.code or 0))
    return subprocess.CompletedProcess(command, code, out.getvalue(), errors.getvalue())


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the JSON records that `penstock iterate` wrote."""
    return [json.loads(line) for line in text.splitlines()]


class Running:
    """`penstock` or another running command, with its own temporary folder and a mark on all its processes."""

    def __init__(self, *arguments: object, command: Sequence[str] = COMMAND, stdout: int = subprocess.DEVNULL) -> None:
        # Not in a test's own folder: it contains sockets, and their paths are limited to 107 bytes.
        self.temporary, self._mark = Path(tempfile.mkdtemp(prefix="run-")), uuid.uuid4().hex
        self._segments = segments_of_nobody()
        self._shm: int | None = None
        self.process = subprocess.Popen(
            [*own_shm(), *command, *map(str, arguments)],
            env={**os.environ, _TAG: self._mark, "TMPDIR": str(self.temporary)},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._look_into_shm()

    def _look_into_shm(self) -> None:
        """Open the command's own /dev/shm, to read it when the command is gone."""
        if own_shm():
            path = os.path.join(f"/proc/{self.process.pid}", "root", "dev", "shm")  # its own mount, not this process's
            ours = os.stat("/dev/shm").st_dev
            assert eventually(lambda: os.stat(path).st_dev != ours)
            self._shm = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def processes(self) -> dict[int, str]:
        """Return process id -> command line, for all processes of the command."""
        return processes_with(_TAG, self._mark)

    def fork_servers(self) -> dict[int, str]:
        """Return the processes of the fork server: itself and its workers."""
        return {pid: line for pid, line in self.processes().items() if "multiprocessing.forkserver" in line}

    def left_behind(self) -> list[str]:
        """Return leftover processes, temporary files and segments."""
        segments = set(os.listdir(self._shm)) if self._shm else segments_of_nobody() - self._segments
        files = [str(path) for path in self.temporary.rglob("*")]
        return [*self.processes().values(), *files, *segments]

    def end(self, number: signal.Signals, *, group: bool) -> tuple[int, str]:
        """Send the signal to the process, or to its group as a terminal does; return exit code and standard error."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        _, errors = self.process.communicate(timeout=600)
        return self.process.returncode, errors

    def leaves_nothing(self, within_s: float = CONTRACT_S) -> bool:
        """Return whether everything is gone in time, by default within the contract's seconds."""
        return eventually(lambda: not self.left_behind(), within_s)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.communicate()
        if self._shm is not None:
            os.close(self._shm)
        shutil.rmtree(self.temporary, ignore_errors=True)
