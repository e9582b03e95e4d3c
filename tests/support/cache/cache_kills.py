"""Builds of a cache that are killed, and what must be true of the file afterwards, whenever that was."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from forked_commands import Command, Commands
from processes import eventually

from penstock.loaders.cache.hdf5_cache import open_cache
from penstock.loaders.cache_build.hdf5_frame import PAYLOAD_OFFSET
from penstock.loaders.cache_build.unfinished import Block, read_journal
from penstock.loaders.cache_build.verify import verify_cache
from penstock.pipelines.errors import LoaderError

VICTIMS = ("group", "parent", "worker")
_PATIENCE_S = 100.0  # on a machine that is busy with others


@dataclass(frozen=True)
class Undisturbed:
    """A build that nobody disturbed: the bytes of the file, those of its payload, seconds in all and after the payload.

    images: how many there are. workers: processes that encoded.
    """

    whole: bytes
    payload_bytes: int
    images: int
    seconds: float
    last_seconds: float
    workers: int


@dataclass(frozen=True)
class Killed:
    """How a trial went. code: how the build ended. state: of the file, see state_of. stored, resumed: images."""

    code: int
    state: str
    stored: int
    resumed: int


def build(commands: Commands, source: Path, dest: Path, workers: int, **conditions: object) -> Command:
    """A build that has been started."""
    return commands.start("cache", "build", source, dest, "--workers", workers, **conditions)


def whole_cache(commands: Commands, source: Path, folder: Path, *options: object) -> bytes:
    """The bytes of a cache of `source` that is built in `folder`, undisturbed."""
    code, command = commands.run("cache", "build", source, folder / "x.h5", "--workers", 0, *options)
    assert code == 0, command.errors
    return (folder / "x.h5").read_bytes()


def undisturbed(commands: Commands, source: Path, folder: Path, workers: int) -> Undisturbed:
    """Build once to the end, and look at the clock."""
    dest = folder / "x.h5"
    code, _ = commands.run("cache", "build", source, dest, "--workers", 0)  # fills the kernel's caches, and the index's
    assert code == 0
    cache, whole = open_cache(dest), dest.read_bytes()
    assert verify_cache(cache).sound
    payload = cache.about[0].payload_bytes
    dest.unlink()
    started_s = time.monotonic()
    command = build(commands, source, dest, workers, small_steps=True)
    wait_for_payload(command, dest, payload)
    full_s = time.monotonic()
    assert command.wait() == 0, command.errors
    ended_s = time.monotonic()
    assert dest.read_bytes() == whole
    dest.unlink()
    return Undisturbed(whole, payload, len(cache), ended_s - started_s, ended_s - full_s, workers)


def _payload_written(dest: Path) -> int:
    """Bytes of payload in the folder of an unfinished cache."""
    sizes = [0]
    for data in dest.parent.glob(dest.name + ".tmp.*/data"):
        try:
            sizes.append(data.stat().st_size - PAYLOAD_OFFSET)
        except OSError:
            continue
    return max(sizes)


def wait_for_payload(command: Command, dest: Path, num_bytes: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while command.running() and _payload_written(dest) < num_bytes:
        assert time.monotonic() < deadline, command.errors
        time.sleep(0.0003)


def kill_somewhere(command: Command, dest: Path, known: Undisturbed, victim: str, draw: random.Random) -> None:
    """SIGKILL at a moment of the build: each image as likely as another, and so often while it finishes or starts."""
    weights = (0, 1, 0, 0) if victim == "worker" else (1, 5, 3, 2)  # workers leave when all images are encoded
    phase = draw.choices(("starting", "storing", "finishing", "anywhere"), weights)[0]
    if phase == "storing":
        wait_for_payload(command, dest, draw.randrange(known.payload_bytes))
    elif phase == "finishing":
        wait_for_payload(command, dest, known.payload_bytes)
        time.sleep(draw.uniform(0, known.last_seconds))
    else:
        time.sleep(draw.uniform(0, known.seconds * (0.3 if phase == "starting" else 1.1)))
    if victim != "worker":
        command.kill(group=victim == "group")
        return
    workers = command.workers()
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(workers), signal.SIGKILL)


def stored_images(dest: Path) -> int:
    """Images that are noted in the journal of an unfinished cache."""
    counts = [0]
    for folder in dest.parent.glob(dest.name + ".tmp.*"):
        _key, *lines = [*read_journal(os.fsencode(folder)), None]
        counts.append(sum(len(Block.from_text(line[0]).records) for line in lines if line is not None))
    return max(counts)


def state_of(dest: Path, whole: bytes, earlier: bytes = b"") -> str:
    """One of "absent", "whole" and "earlier"; a file is one of the two byte for byte, opens and verifies."""
    if not os.path.lexists(dest):
        assert not earlier, f"the earlier cache at {dest} is gone"
        return "absent"
    content = dest.read_bytes()
    assert content in (whole, earlier), f"{dest} is not whole{_described(dest)}"
    report = verify_cache(open_cache(dest), workers=1)
    assert report.sound, report.describe()
    return "whole" if content == whole else "earlier"


def _described(dest: Path) -> str:
    try:
        about = open_cache(dest).about[0]
    except LoaderError as error:
        return f": {error}"
    return f", though it opens: {about.counts}, {about.kept}"


def next_build(commands: Commands, source: Path, dest: Path, whole: bytes, workers: int = 0) -> int:
    """The next build succeeds by itself and leaves nothing but the file; how many images it took over."""
    there = dest.exists() and dest.read_bytes() == whole
    code, command = commands.run("cache", "build", source, dest, "--workers", workers)
    assert code == 0, command.errors
    assert ("nothing to do" in command.output) == there
    assert state_of(dest, whole) == "whole"
    assert os.listdir(dest.parent) == [dest.name]
    assert commands.shared_segments() == []
    told = re.search(r"; ([\d,]+) were there", command.output)
    return int(told[1].replace(",", "")) if told else 0


def killed_build(
    commands: Commands,
    source: Path,
    folder: Path,
    known: Undisturbed,
    victim: str,
    draw: random.Random,
    *,
    earlier: bytes = b"",
) -> Killed:
    """One trial: build, kill, look, build again. Raises AssertionError where anything is not as it must be.

    earlier: a cache with other settings that is there before, which the build is to replace.
    """
    folder.mkdir()
    dest, workers = folder / "x.h5", known.workers
    if earlier:
        dest.write_bytes(earlier)
        dest.chmod(0o600)
    command = build(commands, source, dest, workers, small_steps=True)
    kill_somewhere(command, dest, known, victim, draw)
    code = command.wait()
    if victim == "worker":
        assert code in (0, 5), command.errors
        assert (code == 5) == ("LoaderError[E-WORKER]" in command.errors)
        assert not (folder / "x.h5.lock").exists()
    else:
        assert code in (0, -9), command.errors
    assert eventually(lambda: not command.processes(), _PATIENCE_S), command.processes()
    assert "Traceback" not in command.errors
    state = state_of(dest, known.whole, earlier)
    stored = stored_images(dest)
    resumed = next_build(commands, source, dest, known.whole)
    # What the journal tells was written before it; an image that is noted is never encoded again.
    assert resumed == (0 if state == "whole" else stored)
    return Killed(code, state, stored, resumed)
