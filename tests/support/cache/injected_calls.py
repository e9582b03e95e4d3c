"""System calls of a build that are counted, or struck by a signal or an error one at a time, with strace."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cache_kills import build, next_build, state_of
from forked_commands import Command, Commands

# Those by which a build makes things last or takes them away. "?": not every machine has it.
CALLS = ("fsync", "fdatasync", "rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat")
_WANTED = ",".join(f"?{name}" for name in CALLS)
_CALL = re.compile(rf"^(?:\d+ +)?({'|'.join(CALLS)})\(", re.MULTILINE)


@functools.cache
def may_trace() -> bool:
    """Whether strace is installed and permitted to look at a process that runs."""
    if shutil.which("strace") is None:
        return False
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        tracer = subprocess.Popen(
            ["strace", "-p", str(sleeper.pid), "-o", "/dev/null"], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        told = tracer.stderr.readline()
    finally:
        sleeper.communicate(b"\n")
    tracer.communicate()
    return "attached" in told


def traced(commands: Commands, command: Command, log: Path, *inject: str) -> tuple[int, str]:
    """Run a command that is held, with CALLS traced and the `inject` expressions of strace; (exit code, the trace)."""
    follow = [] if inject else ["-f"]  # its programs are many, and slow to follow; its calls are all its first thread's
    options = [word for expression in inject for word in ("-e", f"inject={expression}")]
    tracer = subprocess.Popen(
        ["strace", *follow, "-o", str(log), "-e", f"trace={_WANTED}", *options, "-p", str(command.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    told = tracer.stderr.readline()
    assert "attached" in told, told
    commands.release(command)
    code = command.wait()
    tracer.communicate()
    return code, log.read_text(errors="replace")


def counted(trace: str) -> dict[str, int]:
    """Call -> how often it was made."""
    return dict(Counter(_CALL.findall(trace)))


def calls_of_a_build(commands: Commands, source: Path, folder: Path) -> dict[str, int]:
    """Call -> how often an undisturbed build makes it."""
    folder.mkdir()
    command = build(commands, source, folder / "x.h5", 0, small_steps=True, hold=True)
    code, trace = traced(commands, command, folder.with_suffix(".trace"))
    assert code == 0, command.errors
    return counted(trace)


def struck_build(commands: Commands, source: Path, folder: Path, whole: bytes, what: str, earlier: bytes = b"") -> str:
    """A build that is struck as `what` says ("fsync:error=EIO:when=2"), then the next one; what the first came to.

    earlier: a cache with other settings that is there before.
    """
    folder.mkdir()
    dest = folder / "x.h5"
    if earlier:
        dest.write_bytes(earlier)
        dest.chmod(0o600)
    command = build(commands, source, dest, 0, small_steps=True, hold=True)
    code, trace = traced(commands, command, folder.with_suffix(".trace"), what)
    assert "(INJECTED)" in trace or "+++ killed by SIGKILL +++" in trace, trace
    told, state = command.errors, state_of(dest, whole, earlier)
    if "SIGKILL" in what:
        assert (code, told) == (-9, "")
    elif code == 0:
        # What may fail: making a rename last in its folder, and removing what nobody looks for.
        assert state == "whole"
        assert "sync" in what or "unlink" in what
    else:
        expected = ("E-NOSPC", 7) if "ENOSPC" in what else ("E-CACHE", 4)
        assert (told[: told.find("]")].removeprefix("LoaderError["), code) == expected, told
        assert told.count("\n") == 1
        if code == 7:
            assert not list(folder.glob("*.tmp.*"))
    next_build(commands, source, dest, whole)
    return f"exit code {code}, {state}"
