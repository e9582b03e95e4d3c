"""Kills, stops and signals loading programs at random moments: `python tests/studies/kill_campaign.py --trials 500`.

After each trial nothing may be left: no process, no file in /dev/shm or the temporary folder, no lock that blocks
another build. If a program was killed together with all processes that could clean up, the next loading program does
so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

sys.path.extend(str(folder) for folder in (Path(__file__).resolve().parents[1] / "support").iterdir())  # as a script

import typer
from forked_commands import Command, Commands
from mounts import own_shm
from photo_folder import write_folder

PROCESSOR_S = 5.0  # limit for a program that ends, all of its processes together
_HANG_S = 200.0  # limit for a program that ends without using a processor
_TICKS = os.sysconf("SC_CLK_TCK")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_MOMENTS = ("at once", "server", "workers", "later")
_ENDLESS = 10**9

_DROP_IN = """
from numbered_dataset import Numbered
from penstock.loaders import DataLoader
if __name__ == "__main__":
    options = dict(shuffle=True, num_workers={workers}, multiprocessing_context={context!r})
    with DataLoader(Numbered(1000), 4, **options) as loader:
        while True:
            for batch in loader:
                pass
"""
_THREADS = """
from penstock.loaders import create_loader
from penstock.pipelines import imagenet_train
if __name__ == "__main__":
    with create_loader({cache!r}, backend="hdf5", workers_are="threads", workers=2, batch_size=12,
                       pipeline=imagenet_train(32)) as loader:
        while True:
            for batch in loader:
                pass
"""
_SWEEP = "from penstock.loaders.run.workers.leftovers import sweep\nsweep()\n"


@dataclass(frozen=True)
class Program:
    """Describe the program of a trial.

    arguments: for `penstock`. script: run instead. dest: the cache that it builds. alone: whether it has no workers.
    """

    name: str
    arguments: tuple[object, ...] = ()
    script: Path | None = None
    dest: Path | None = None
    alone: bool = False


@dataclass
class Trial:
    """Hold the signal to a program and its consequences.

    Attributes:
        number: of the trial.
        program: name of the program.
        moment: time of the signal.
        strike: the signal.
        victim: its receiver: "main", "worker", "server", "tracker" or "group".
        code: exit code; negative for the signal that ended it.
        processor_s: processor time from the signal to the end.
        wall_s: wall time from the signal to the end.
        processes: command lines of leftover processes.
        files: leftovers in /dev/shm and in the temporary folder.
        swept: leftovers before the sweep.
        errors: end of the standard error.
        faults: violations of the contract.
    """

    number: int
    program: str
    moment: str
    strike: str = ""
    victim: str = ""
    code: int | None = None
    processor_s: float = 0.0
    wall_s: float = 0.0
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    errors: str = ""
    faults: list[str] = field(default_factory=list)


def judge(trial: Trial) -> list[str]:
    """Return the violations of the contract."""
    faults = []
    killed = trial.strike == "SIGKILL"
    scripted = trial.program.startswith(("drop-in", "threads"))  # nothing catches their errors
    if trial.code is None:
        faults.append("it hangs")
    elif trial.code not in _codes(trial, scripted=scripted):
        faults.append(f"exit code {trial.code}")
    if trial.processor_s > PROCESSOR_S:
        faults.append(f"it took {trial.processor_s:.1f} s of processor time to end")
    if trial.processes:
        faults.append("processes are left")
    if trial.files:
        faults.append("files are left")
    if trial.swept and not (killed and trial.victim in ("group", "tracker")):
        faults.append("files were left for the sweep although the processes that remove them were not killed")
    if not scripted and "Traceback" in trial.errors:
        faults.append("a traceback")
    if not scripted and "leaked" in trial.errors and not killed:
        faults.append("multiprocessing reports a leak")
    return faults


def _codes(trial: Trial, *, scripted: bool) -> set[int]:
    """Return the valid exit codes of a program after the signal."""
    numbers = {signal.Signals[trial.strike], signal.SIGTERM}
    found = {sign for number in numbers for sign in (-number, 128 + number)}
    if trial.program.startswith("cache build"):
        found.add(0)  # it had finished
    if "LoaderError[E-WORKER]" in trial.errors and trial.strike == "SIGKILL":
        found.add(1 if scripted else 5)
    return found


class Campaign:
    """Runs trials with a random program, moment and signal."""

    def __init__(self, folder: Path, commands: Commands, draw: random.Random) -> None:
        self._folder, self._commands, self._draw = folder, commands, draw
        self._known_leftovers: set[str] = set()  # shared memory that an earlier trial left
        self._photos = write_folder(folder / "photos", 60)
        code, command = commands.run("cache", "build", self._photos, folder / "whole.h5", "--workers", 0)
        assert code == 0, command.errors
        self._sweep = self._script("sweep", _SWEEP)
        self.programs = self._all_programs()

    def _script(self, name: str, text: str) -> Path:
        path = self._folder / f"{name}.py"
        path.write_text(text)
        return path

    def _all_programs(self) -> list[Program]:
        whole = self._folder / "whole.h5"
        engines: dict[str, tuple[object, ...]] = {
            "torch": ("--workers", 2, "--decoder", "simplejpeg"),
            "native": ("--workers", 2),
            "in-process": ("--workers", 0),
            "hdf5": ("--backend", "hdf5", "--workers", 2, "--decoder", "simplejpeg"),
        }
        if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
            engines["dali"] = ("--backend", "dali", "--workers", 2)
        found = []
        for engine, options in engines.items():
            data: Path = whole if engine == "hdf5" else self._photos
            alone = engine in ("in-process", "native", "dali")
            small = ("--size", 32, "--batch-size", 12, "--epochs", _ENDLESS)
            found.append(Program(f"iterate {engine}", ("iterate", data, *small, *options), alone=alone))
            found.append(Program(f"train {engine}", ("train", data, "--device", "cpu", *small, *options), alone=alone))
        for workers in (0, 2):
            arguments = ("cache", "build", self._photos, "DEST", "--workers", workers)
            found.append(Program(f"cache build {workers}", arguments, dest=Path("DEST"), alone=not workers))
        for name, workers, context in (("default", 2, None), ("forkserver", 2, "forkserver"), ("in-process", 0, None)):
            script = self._script(f"drop_in_{name}", _DROP_IN.format(workers=workers, context=context))
            found.append(Program(f"drop-in {name}", script=script, alone=not workers or context is None))
        found.append(Program("threads", script=self._script("threads", _THREADS.format(cache=str(whole))), alone=True))
        return found

    def run(self, number: int) -> Trial:
        """Run one trial."""
        program = self.programs[number % len(self.programs)]
        trial = Trial(number, program.name, self._draw.choice(_MOMENTS))
        place = self._folder / "trial"
        place.mkdir()
        temporary = Path(tempfile.mkdtemp(prefix="t", dir=self._folder))
        dest = place / "x.h5"
        arguments = [dest if word == "DEST" else word for word in program.arguments]
        command = self._commands.start(
            *arguments,
            script=program.script,
            environment={"TMPDIR": str(temporary)},
            **({"small_steps": True} if program.dest else {}),
        )
        self._wait_for(trial.moment, command, alone=program.alone)
        self._strike(trial, command)
        self._watch_the_end(trial, command)
        trial.errors = command.errors
        self._look_behind(trial, temporary)
        if program.dest:
            self._build_again(trial, place, dest)
        trial.faults += judge(trial)
        shutil.rmtree(place)
        shutil.rmtree(temporary)
        return trial

    def _wait_for(self, moment: str, command: Command, *, alone: bool) -> None:
        """Wait for the moment of the signal, or some seconds if there are no processes to wait for."""
        fewest = {"at once": 0, "server": 2, "workers": 4, "later": 5}[moment]  # main, tracker, server, workers
        deadline = time.monotonic() + (self._draw.uniform(0, 6) if alone else _HANG_S)
        while command.running() and len(command.processes()) < fewest and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(self._draw.uniform(0, {"at once": 0.5, "server": 3.0, "workers": 0.1, "later": 2.0}[moment]))

    def _strike(self, trial: Trial, command: Command) -> None:
        """Send a signal to the program or one of its processes that ends it, directly or with a second signal."""
        kind = self._draw.choice(("kill one", "kill group", "stop one", "stop group", "signal main", "signal group"))
        roles = command.roles()
        role = "main" if kind.endswith("main") else self._draw.choice(sorted(set(roles.values())) or ["main"])
        pid = self._draw.choice([pid for pid, its in sorted(roles.items()) if its == role] or [command.pid])
        trial.victim = "group" if kind.endswith("group") else role
        other = self._draw.choice(_SIGNALS)
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}.get(kind.split()[0], other)
        trial.strike = number.name
        self._send(number, pid, command, group=trial.victim == "group")
        if number == signal.SIGSTOP:
            time.sleep(self._draw.uniform(0.05, 1.0))
            self._send(signal.SIGCONT, pid, command, group=trial.victim == "group")
        if number == signal.SIGSTOP or (number == signal.SIGKILL and trial.victim == "tracker"):
            time.sleep(self._draw.uniform(0, 0.5))
            self._send(signal.SIGTERM, command.pid, command, group=False)

    @staticmethod
    def _send(number: signal.Signals, pid: int, command: Command, *, group: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(command.pid, number)
            else:
                os.kill(pid, number)

    @staticmethod
    def _watch_the_end(trial: Trial, command: Command) -> None:
        started, before, used = time.monotonic(), _processor_times(command), {}
        while (there := command.processes()) and trial.wall_s < _HANG_S and trial.processor_s <= 2 * PROCESSOR_S:
            used.update(_processor_times(command))
            trial.processor_s = sum(seconds - before.get(pid, 0.0) for pid, seconds in used.items())
            trial.wall_s = time.monotonic() - started
            time.sleep(0.02)
        trial.processes = [_line(pid) for pid in there]
        hangs = bool(there)
        command.kill(group=True)
        code = command.wait()
        trial.code = None if hangs else code

    def _look_behind(self, trial: Trial, temporary: Path) -> None:
        trial.swept = self._files(temporary)
        if trial.swept:
            command = self._commands.start(script=self._sweep, environment={"TMPDIR": str(temporary)})
            assert command.wait() == 0, command.errors
            trial.files = self._files(temporary)
        self._known_leftovers |= set(trial.files)

    def _files(self, temporary: Path) -> list[str]:
        files = [str(path.relative_to(temporary)) for path in temporary.rglob("*")]
        # torch keeps its compiled code.
        files = [name for name in files if not name.startswith("torchinductor")]
        return [*files, *(name for name in self._commands.shared_segments() if name not in self._known_leftovers)]

    def _build_again(self, trial: Trial, place: Path, dest: Path) -> None:
        """Check that leftovers of the builder, including its lock, do not block the next build."""
        code, command = self._commands.run("cache", "build", self._photos, dest, "--workers", 0)
        left = sorted(path.name for path in place.iterdir())
        if code != 0 or left != [dest.name]:
            trial.faults.append(f"the next build: exit code {code}, {left}, {command.errors[-500:]}")


def _processor_times(command: Command) -> dict[int, float]:
    times = {}
    for pid in command.processes():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            times[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return times


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    except OSError:
        return str(pid)


@contextlib.contextmanager
def campaign(seed: int) -> Iterator[Campaign]:
    """Create everything that trials need, and remove it afterwards."""
    for number in _SIGNALS:  # background jobs of a shell ignore Ctrl-C, and so do their programs
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        with Commands(Path(folder) / "commands", own_shm()) as commands:
            yield Campaign(Path(folder), commands, random.Random(seed))


def main(
    trials: Annotated[int, typer.Option(help="How many.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of moments and strikes.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all trials here.")] = None,
    only: Annotated[str, typer.Option(help="Programs whose name contains this.")] = "",
) -> None:
    """Run the trials, and end with exit code 1 if anything was left behind."""
    done: list[Trial] = []
    with campaign(seed) as runs:
        runs.programs = [program for program in runs.programs if only in program.name]
        for number in range(trials):
            done.append(trial := runs.run(number))
            summary_line = f"{trial.program}: {trial.strike} to {trial.victim} ({trial.moment}), exit code {trial.code}"
            print(f"{number:4} {summary_line}, {trial.processor_s:.2f} s", *trial.faults, sep=" | ", flush=True)
            if trial.faults:
                print(trial.errors[-1500:], trial.files, trial.swept, trial.processes, sep="\n", flush=True)
    bad = [trial for trial in done if trial.faults]
    summary: dict[str, Any] = {
        "seed": seed,
        "trials": len(done),
        "faulty": len(bad),
        "by_program": Counter(trial.program for trial in done),
        "by_strike": Counter(f"{trial.strike} {trial.victim}" for trial in done),
        "longest_processor_s": max((trial.processor_s for trial in done), default=0.0),
        "swept": sum(bool(trial.swept) for trial in done),
    }
    print(json.dumps(summary, indent=2))
    if json_file is not None:
        json_file.write_text(json.dumps({**summary, "all": [asdict(trial) for trial in done]}, indent=1) + "\n")
    raise typer.Exit(1 if bad else 0)


if __name__ == "__main__":
    typer.run(main)
