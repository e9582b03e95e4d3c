"""How the command ends: one line, the right exit code, and no leftovers after a signal at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from command_line import COMMAND, Running, penstock_here
from forked_commands import Commands
from photo_folder import write_folder
from processes import eventually, in_time

from penstock.bench.commands import iterate as command_iterate
from penstock.bench.train.stop_signals import SignalExit, exit_on_signals
from penstock.loaders import __version__
from penstock.pipelines.errors import LoaderError

NUM_PHOTOS = 61


def endless(photos: Path, decoder: str = "simplejpeg") -> tuple[object, ...]:
    """Arguments of a command that never ends; simplejpeg uses worker processes, native threads."""
    small = ("--size", 32, "--batch-size", 12, "--epochs", 10**9)
    return "iterate", photos, *small, "--workers", 2, "--decoder", decoder


USAGE = ["bench --batch-size 0", "train --accumulate 0", "cache advise --sample 0"]
USAGE += ["iterate --batch-size 0", "iterate --workers x"]


@pytest.mark.parametrize("arguments", USAGE)
def test_a_number_below_its_minimum_is_refused_by_name(tmp_path: Path, arguments: str) -> None:
    *command, option, value = arguments.split()
    run = penstock_here(*command, tmp_path, option, value)
    assert (run.returncode, f"Invalid value for '{option}': " in run.stderr) == (2, True), run.stderr


def test_a_validation_folder_is_named_in_one_line_of_ascii(photos: Path, tmp_path: Path) -> None:
    other = write_folder(tmp_path / "v\u00e4l\n\x1b[31m", 4, classes=2)
    run = penstock_here("train", photos, "--validation", other, "--workers", 0, "--device", "cpu")
    assert run.returncode == 2
    assert "has other classes than" in run.stderr
    assert r"v\xe4l\n\x1b[31m' has" in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.strip().isprintable()


# ---- signals ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_python_exits_prints_nothing(commands: Commands, tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import atexit, os; from penstock.bench.cli import main; "
        f"atexit.register(os.kill, os.getpid(), {number.value}); main()"
    )
    code, run = commands.run("synth", tmp_path / "photos", "--images", 10, "--validation", 0, script=program)
    assert (code, run.errors) == (0, "")
    assert run.output


def test_a_signal_ends_a_command_with_blocked_output(photos: Path) -> None:
    """Idle: it waits in a write, its workers wait for free slots."""
    with Running(*endless(photos), stdout=subprocess.PIPE) as running:
        assert eventually(lambda: len(running.fork_servers()) == 3, 30)
        assert eventually(lambda: waits_for_a_pipe(running.process.pid), 30)
        os.kill(running.process.pid, signal.SIGTERM)
        started = time.monotonic()
        assert running.process.wait(timeout=600) == 143
        assert in_time(started)
        assert running.leaves_nothing(), running.left_behind()
        assert running.process.stderr is not None
        assert running.process.stderr.read() == "penstock: stopped by SIGTERM\n"


def waits_for_a_pipe(pid: int) -> bool:
    """Whether the process was in a write(1, ...) at two moments."""

    def writing() -> bool:
        return Path(f"/proc/{pid}/syscall").read_text().split()[:2] == ["1", "0x1"]

    first = writing()
    time.sleep(0.2)
    return first and writing()


def test_ignored_signals_stay_ignored() -> None:
    """As required under nohup and in a shell's background."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        exit_on_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        with pytest.raises(SignalExit) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert caught.value.code == 143
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # sent by a batch system and again by torchrun
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # for a user who presses Ctrl-C again
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


INTERRUPTED_FINALIZER = """
import signal, sys, time
from penstock.bench import cli

class Finalized:
    strikes = 3

    def __del__(self):
        if Finalized.strikes:
            Finalized.strikes -= 1
            signal.raise_signal(int(sys.argv[1]))
            print("not reached")

def work():
    for _ in range(1000):
        Finalized()
        time.sleep(0.01)

cli.app, cli._register = work, lambda: None
cli.main()
"""


# Like that of a training run, which saves at the end of the step.
LATER_HANDLER = INTERRUPTED_FINALIZER.replace(
    "    for _ in range(1000):\n",
    "    Finalized.strikes = 1\n    Finalized()\n"
    "    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit('saved'))\n    for _ in range(300):\n",
)
OTHER_ERROR = INTERRUPTED_FINALIZER.replace("signal.raise_signal(", "raise ValueError(").replace("1000", "5")


@pytest.mark.parametrize(
    ("script", "number", "code", "last"),
    [
        (INTERRUPTED_FINALIZER, signal.SIGINT, 130, "penstock: stopped by SIGINT"),
        (INTERRUPTED_FINALIZER, signal.SIGTERM, 143, "penstock: stopped by SIGTERM"),
        (LATER_HANDLER, signal.SIGTERM, 1, "saved"),
        (OTHER_ERROR, 7, 0, "ValueError: 7"),
    ],
    ids=["SIGINT", "SIGTERM", "a later handler", "another error"],
)
def test_a_signal_in_a_finalizer_is_handled(
    commands: Commands, tmp_path: Path, script: str, number: int, code: int, last: str
) -> None:
    """Python drops and prints exceptions raised there; for errors other than ours this is unchanged."""
    program = tmp_path / "program.py"
    program.write_text(script)
    found, command = commands.run(int(number), script=program)
    assert (found, command.output) == (code, "")
    assert command.errors.count(f"{last}\n") == (3 if script is OTHER_ERROR else 1)
    assert script is OTHER_ERROR or command.errors == f"{last}\n"


# ---- exit codes ----


def test_the_output_may_be_cut_off(photos: Path) -> None:
    line = " ".join([*COMMAND, "iterate", str(photos), "--size 32 --batch-size 4 --workers 2 --epochs 20"])
    done = subprocess.run(f"{line} | head -n 1", shell=True, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('{"epoch": 0, "step": 0, "index": [')
    assert done.stdout.count("\n") == 1


def test_a_script_without_a_main_guard_works_with_workers(photos: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from penstock.loaders import create_loader\n"
        f"loader = create_loader({str(photos)!r}, batch_size=12, workers=2)\n"
        "for epoch in range(2):\n"
        "    print(epoch, sum(len(labels) for images, labels in loader))\n"  # never closed, either
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 60\n1 60\n", "")


def run_main(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command line, in this process."""
    done = penstock_here(*arguments)
    return done.returncode, done.stdout, done.stderr


QUIET = ("--size", 32, "--batch-size", 12, "--workers", 0, "--dump", os.devnull)


def after(earlier: BaseException, error: Exception) -> Exception:
    error.__context__ = earlier
    return error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError("Unable to allocate 10 GiB"), 7, "LoaderError[E-MEM]"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried\nframe #0"), 7, "LoaderError[E-MEM]"),
        (RuntimeError("can't start new thread"), 7, "LoaderError[E-MEM]"),
        (OSError(28, "No space left on device"), 7, "LoaderError[E-NOSPC]"),
        (PermissionError(13, "Permission denied", "/out"), 2, "penstock: [Errno 13] Permission denied: '/out'"),
        (LoaderError("E-FD", "open files"), 7, "LoaderError[E-FD]"),
        (LoaderError("E-FORMAT", "text", sample=0), 3, "LoaderError[E-FORMAT] sample=0"),
        (LoaderError("E-WORKER", "killed", worker=7), 5, "LoaderError[E-WORKER] worker=7"),
        (LoaderError("E-TIMEOUT", "stopped", worker=7), 6, "LoaderError[E-TIMEOUT] worker=7"),
        (SignalExit(signal.SIGTERM), 143, "penstock: stopped by SIGTERM"),
        (after(SignalExit(signal.SIGTERM), RuntimeError("a worker exited")), 143, "penstock: stopped by SIGTERM"),
    ],
    ids=repr,
)
def test_errors_are_one_line_and_an_exit_code(
    photos: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(command_iterate, "batch_record", fail)
    got, _, errors = run_main("iterate", photos, *QUIET)
    assert (got, errors.count("\n")) == (code, 1)
    assert errors.startswith(words)


def test_warnings_are_one_line_without_a_place_in_code(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object) -> None:
        sys.stderr.write(warnings.formatwarning("two\n  lines", UserWarning, "typer/main.py", 1445))
        raise LoaderError("E-FD", "open files")

    monkeypatch.setattr(command_iterate, "batch_record", warn)
    assert run_main("iterate", photos, *QUIET)[2].splitlines()[0] == "penstock: warning: two lines"


HELP_OF_ALL = """
import sys
from penstock.bench import cli

cli._register()
commands = cli.typer.main.get_command(cli.app).commands
helps = [[], *([name] for name in commands), *(["cache", name] for name in commands["cache"].commands)]
for words in [["--version"], *([*words, "--help"] for words in helps)]:
    try:
        cli.app(words)
    except SystemExit as left:
        assert left.code == 0
print(len(commands), sorted({"torch", "numpy", "h5py", "PIL"} & set(sys.modules)))
"""


def test_help_of_no_command_imports_torch() -> None:
    """Its import takes seconds, which help should not cost."""
    program = [sys.executable, "-c", HELP_OF_ALL]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, check=False)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "14 []")
    assert done.stdout.startswith(f"penstock-loader {__version__}\n")
    assert "Exit codes: 0 fine, 2 usage" in done.stdout
