"""Runs what a GPU machine is to show, the most telling first: smoke, the GPU tests, then one record after the other.

`make bench-gpu` calls it. Each step is a process of its own, so that one that crashes loses itself alone. It stops when
its time is up; called again it goes on: what succeeded is not run again, and what failed only with --retry. What needs
a package that is not installed is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from records_table import records_table

MODELS = ("resnet50", "resnet18")
SOURCES = ("torch", "dali-cache", "hdf5", "dali")  # a record is of a backend on the files, or on the cache
# For a ratio of 0.99: windows of 10 s, twice, after a search of 40 s; and time to try the advice.
_WINDOWS = ("--seconds", "10", "--tune-seconds", "40", "--budget", "380")
_RECORD_S = 400.0
_LEAVE_S = 10.0  # for a process that is told to end
_TIME_UP = "ended: its time was up"
_DALI = ("nvidia.dali",)
_REGIONS = (
    "the GPU decoder of DALI crashes here, as nvImageCodec 0.9.0 is known for: pip install nvidia-dali-cuda130==2.2.0 "
    "(or -cuda120), which brings 0.8"
)


class Step(NamedTuple):
    """Name a command: seconds it takes at least, the record it writes, what a crash means, the modules it needs."""

    name: str
    command: tuple[str, ...]
    seconds: float = 60.0
    record: Path | None = None
    crash: str = ""
    needs: tuple[str, ...] = ()


def steps(data: str, cache: str, demo: str, results: Path, options: Sequence[str]) -> list[Step]:
    """Return all steps, in the order of their worth."""
    penstock = (sys.executable, "-m", "penstock.bench.cli")
    tests = (sys.executable, "-m", "pytest", "-q", "-m", "gpu")
    found = [
        Step("regions", (*tests, "tests/pipelines/sample/test_dali_graph.py"), 30, crash=_REGIONS, needs=_DALI),
        Step("selftest", (*penstock, "selftest", "--device", "cuda"), 30),
        Step("demo", (*penstock, "synth", demo), 10),
        Step("parity", (*penstock, "parity", f"{demo}/train", "--images", "64"), 30, crash=_REGIONS),
        Step("tests", (*tests, "tests"), 120),
    ]
    for source in SOURCES:
        cached = ("--cache", cache) if source in ("hdf5", "dali-cache") else ()
        for model in MODELS:
            record = results / f"gpu-{model}-{source}.json"
            needs = (_DALI if "dali" in source else ()) + (("h5py",) if cached else ())
            what = ("bench", data, "--backend", source.partition("-")[0], *cached, "--model", model)
            name = record.stem.removeprefix("gpu-")
            command = (*penstock, *what, *_WINDOWS, *options, "--baseline", "--json", str(record))
            found.append(Step(name, command, _RECORD_S, record, needs=needs))
    record = results / "gpu-turboloader.json"
    peer = (sys.executable, str(Path(__file__).with_name("turboloader_gpu.py")), data, "--json", str(record))
    found.append(Step("turboloader", peer, 60, record, needs=("turboloader",)))
    return found


Run = Callable[[Sequence[str], float], "int | None"]


def run_process(command: Sequence[str], seconds: float) -> int | None:
    """Run a command in a process group of its own; return its exit code, None where it was ended for want of time."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, sign)
                try:
                    process.wait(_LEAVE_S)
                except subprocess.TimeoutExpired:
                    continue


def run_steps(
    wanted: Sequence[Step],
    state: Path,
    budget: float,
    *,
    retry: bool = False,
    run: Run = run_process,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> dict[str, str]:
    """Run the steps that `state` does not know, for `budget` seconds; return what became of each.

    retry: run what failed once more. A step whose time was up is run again anyway.
    """
    known: dict[str, str] = json.loads(state.read_text()) if state.exists() else {}
    begin = clock()
    outcome: dict[str, str] = {}
    for step in wanted:
        left = budget - (clock() - begin)
        before = known.get(step.name, _TIME_UP)
        if before == "done" or not (retry or before == _TIME_UP):
            outcome[step.name] = f"{before} before" + " (--retry)" * (before != "done")
        elif missing := [name for name in step.needs if not _has_module(name)]:
            outcome[step.name] = f"skipped: {', '.join(missing)} is not installed"
        elif left < step.seconds:
            outcome[step.name] = f"left out: it takes {step.seconds:.0f} s, and {max(0.0, left):.0f} s are left"
        else:
            say(f"bench-gpu: {step.name} ({left:.0f} s left)")
            outcome[step.name] = known[step.name] = _verdict(step, run(step.command, left))
            state.parent.mkdir(parents=True, exist_ok=True)
            state.write_text(json.dumps(known))
        say(f"bench-gpu: {step.name}: {outcome[step.name]}")
    return outcome


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def _verdict(step: Step, code: int | None) -> str:
    if code == 0:
        return "done"
    if code is None:
        return _TIME_UP
    ending = f"failed with {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
    return f"{ending}: {step.crash}" if code < 0 and step.crash else ending


def main(arguments: Sequence[str] | None = None, **control: Any) -> int:
    """Run the steps and print the table of the records that are there; return 1 unless all is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--demo", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--state", type=Path, default=Path("build/gpu-hour.json"))
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds")
    parser.add_argument("options", nargs="*", help="of `penstock bench`, after --")
    parser.add_argument("--retry", action="store_true", help="run what failed once more")
    given = parser.parse_args(arguments)
    given.results.mkdir(parents=True, exist_ok=True)
    wanted = steps(given.data, given.cache, given.demo, given.results, given.options)
    outcome = run_steps(wanted, given.state, given.budget, retry=given.retry, **control)
    records = [step.record for step in wanted if step.record is not None and step.record.exists()]
    if records:
        print(records_table(records))
    return int(any(not result.startswith(("done", "skipped")) for result in outcome.values()))


if __name__ == "__main__":
    sys.exit(main())
