"""Programs ended by a signal at any moment: one line, the exit code, nothing left, and the next build continues."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import penstock_here
from forked_commands import Command, Commands
from photo_folder import photo
from processes import CONTRACT_S, eventually, in_time

from penstock.pipelines.native.library import native_library

IMPORT_S = 15.0  # import of torch in a new process
INT, TERM, HUP, KILL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
SMALL = ("--size", 32, "--batch-size", 12, "--epochs", 10**9, "--workers", 2)
# Commands, and scripts without signal handlers; none ends soon without a signal.
COMMANDS: dict[str, tuple[object, ...]] = {
    "processes": ("iterate", "PHOTOS", *SMALL, "--decoder", "simplejpeg"),
    "threads": ("iterate", "PHOTOS", *SMALL, "--decoder", "native"),
    "dali": ("iterate", "PHOTOS", *SMALL, "--backend", "dali"),
    "build": ("cache", "build", "MANY", "DEST", "--workers", 2),
    "advise": ("cache", "advise", "MANY", "--workers", 2),
}
SCRIPTS = {
    "script": "create_loader({photos!r}, batch_size=4, workers=1, workers_are='processes')",
    "drop-in": "DataLoader(Numbered(99), num_workers=1, multiprocessing_context='forkserver')",
}
SCRIPT = """
from numbered_dataset import Numbered
from penstock.loaders import DataLoader, create_loader
if __name__ == "__main__":
    loader = {loader}
    while True:
        for batch in loader:
            print("a batch", flush=True)
"""
MOMENTS: dict[str, Callable[[Command], object]] = {
    "server starts": lambda command: "server" in command.roles().values(),  # it imports torch; no worker yet
    "workers start": Command.workers,
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough large photos to stop in the middle."""
    root = tmp_path_factory.mktemp("many")
    for number in range(120):
        path = root / f"{number:04d}.jpg"
        if number < 20:
            path.write_bytes(photo(number, large=True))
        else:
            os.link(root / f"{number % 20:04d}.jpg", path)
    return root


def is_under_way(name: str, command: Command, dest: Path) -> bool:
    if name == "build":
        return any(path.stat().st_size > 4000 for path in dest.parent.glob("*.tmp.*/journal"))
    if name == "advise":
        assert command.temporary is not None
        return list(command.temporary.glob("penstock-advise-*/0.h5")) != []
    return bool(command.output)


@pytest.mark.parametrize(
    ("name", "number", "group", "moment"),
    [
        ("processes", TERM, False, "server starts"),
        ("processes", KILL, False, "server starts"),
        ("processes", INT, True, "workers start"),
        *((name, INT, True, "under way") for name in ("processes", "build")),
        *((name, TERM, False, "under way") for name in ("dali", "build", "advise", *SCRIPTS)),
        *((name, KILL, False, "under way") for name in ("processes", "threads", "dali", "build")),
        *(("threads", number, False, "under way") for number in (INT, HUP)),
        ("script", TERM, True, "under way"),
    ],
    ids=lambda value: ("group" if value else "process") if isinstance(value, bool) else getattr(value, "name", value),
)
def test_a_signal_leaves_one_line_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    photos: Path,
    many: Path,
    commands: Commands,
    name: str,
    number: signal.Signals,
    group: bool,
    moment: str,
) -> None:
    if name == "threads" and native_library() is None:
        pytest.skip("the native library was not built here")
    folder, script = tmp_path_factory.mktemp("stopped"), None
    dest = folder / "x.h5"
    places = {"PHOTOS": photos, "MANY": many, "DEST": dest}
    if name in SCRIPTS:
        script = tmp_path_factory.mktemp("script") / "train.py"
        script.write_text(SCRIPT.format(loader=SCRIPTS[name].format(photos=str(photos))))
    arguments = [places.get(str(word), word) for word in COMMANDS.get(name, ())]
    is_there = MOMENTS.get(moment, lambda command: is_under_way(name, command, dest))
    with commands.running(*arguments, script=script) as running:
        assert eventually(lambda: bool(is_there(running)), 60), running.errors
        started = time.monotonic()
        code, errors = running.end(number, group=group)
        # A fork server that was not notified detects that it is alone once it, or a worker, has imported torch.
        within_s = IMPORT_S if number == KILL and "start" in moment else CONTRACT_S
        assert in_time(started, within_s)
        assert running.leaves_nothing(within_s), running.left_behind()
    if number == KILL or script:
        assert code == -number
        assert "Traceback" not in errors  # Python's resource tracker reports that it has cleaned up
    else:
        assert code == 128 + number
        lines = errors.splitlines() if name in ("build", "advise") else [errors.removesuffix("\n")]
        assert lines[-1:] == [f"penstock: stopped by {number.name}"]  # a build may have printed its progress
    if name == "build":
        left = [entry for entry in os.listdir(folder) if number != KILL or not entry.endswith(".lock")]
        assert [entry.startswith("x.h5.tmp.") for entry in left] == [True]
        run = penstock_here(*arguments)
        assert run.returncode == 0, run.stderr
        assert "continuing" in run.stderr
        assert "came from a build that was stopped" in run.stdout
        assert "stored 120 as JPEGs in strips" in run.stdout
        assert os.listdir(folder) == ["x.h5"]


def test_a_signal_may_reach_the_workers_first(photos: Path, commands: Commands) -> None:
    """Like a batch system that ends a job's processes one by one: no worker is blamed."""
    words = [photos if word == "PHOTOS" else word for word in COMMANDS["processes"]]
    with commands.running(*words) as running:
        assert eventually(lambda: bool(running.output), 30), running.errors
        for pid, role in running.roles().items():
            if role in ("server", "worker"):
                os.kill(pid, TERM)
        time.sleep(0.1)
        assert running.end(TERM, group=False) == (143, "penstock: stopped by SIGTERM\n")
        assert running.leaves_nothing(), running.left_behind()
