"""Runs the steps for a GPU machine in order of importance, for a few minutes: `make bench-gpu` calls it.

Each step is a separate process with its own time limit, so that a hang or crash affects only this step. It writes its
results at once, into one folder. After each step the folder has a summary and, in records.tar.gz, all records as one
file. docs/guides/gpu.md describes the steps.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.loaders.system.json_file import write_json

HERE = Path(__file__).resolve().parent
TESTS = ("tests/pipelines/batch", "tests/loaders/run/feed", "tests/bench/train/step", "tests/bench/train")
SELFTEST_TESTS = "tests/bench/checks/test_selftest_device.py"
DALI_TESTS = ("tests/pipelines/sample/test_dali_graph.py", "tests/loaders/dali")
DALI, JPEG = "nvidia.dali", "simplejpeg"
LEAVE_S = 5.0  # time for a process to end after its signal
UNPACK_S = 60.0  # maximum wait for a folder that is still being unpacked at its first step
LEAST_S = 15.0  # minimum for a step that takes longer but notes partial results


class Step(NamedTuple):
    """Describe a step.

    Attributes:
        name: for --only and the summary.
        command: the command of the step.
        most_s: time limit in seconds.
        expected_s: expected duration in seconds.
        needs: required modules and programs; without them the step is skipped.
        is_whole: whether results exist only at the end, so that the step is skipped unless expected_s are left.
    """

    name: str
    command: tuple[str, ...]
    most_s: float
    expected_s: float
    needs: tuple[str, ...] = ()
    is_whole: bool = False

    @property
    def least_s(self) -> float:
        """Minimum of seconds left to start the step."""
        return self.expected_s if self.is_whole else min(LEAST_S, self.expected_s)


class Place(NamedTuple):
    """Locate the data and the records of the steps.

    Attributes:
        results: folder of the records.
        data: folder of photos.
        demo: folder made by `penstock synth`.
        cache: HDF5 cache of `data`, built on first use.
        device: of torch.
    """

    results: Path
    data: str
    demo: str
    cache: str
    device: str


def steps(place: Place) -> list[Step]:
    """Return all steps, the most important first."""
    python, device = sys.executable, place.device
    penstock = (python, "-m", "penstock.bench.cli")

    def record(name: str) -> str:
        return str(place.results / name)

    def study(name: str, *arguments: str) -> tuple[str, ...]:
        return python, str(HERE / f"gpu_{name}.py"), *arguments

    def tests(name: str, *folders: str) -> tuple[str, ...]:
        limits = ("--timeout", "60", "-W", "default", "-W", "error::RuntimeWarning")  # from torch and its plugins
        command = (python, "-m", "pytest", "-p", "pytest_timeout", "-q", "-m", "gpu", "-rfE", "--tb=short", *limits)
        return *command, f"--junitxml={record(name)}", *folders

    def bench(name: str, model: str, *backend: str) -> tuple[str, ...]:
        gpu = ("--entries", "100000", "--device", device, "--amp", "bf16", "--batch-size", "256")
        brief = ("--seconds", "4", "--budget", "50", "--no-apply", "--no-tune")
        return *penstock, "bench", place.data, *backend, "--model", model, *gpu, *brief, "--json", record(name)

    cached = ("--backend", "hdf5", "--cache", place.cache)
    rates = (place.data, place.cache, device)
    selftest = (*penstock, "selftest", "--device", device, "--json", record("selftest.json"))
    dali_rates = study("rates", record("rates-dali.json"), *rates, "--kinds", "dali", "dali-cache")
    resnet18 = bench("gpu-resnet18-torch.json", "resnet18", "--backend", "torch")
    resnet50 = bench("gpu-resnet50-hdf5.json", "resnet50", *cached)
    train = ("train", place.demo, "--model", "resnet18", "--device", device, "--amp", "bf16", "--epochs", "3")
    memcheck = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9")
    turbo = (python, str(HERE.parent / "turboloader_gpu.py"), place.data, "--json", record("gpu-turboloader.json"))
    pytest = (JPEG, "pytest", "pytest_timeout")
    return [
        Step("facts", study("facts", record("facts.json")), 20, 5),
        Step("kernels", study("kernels", record("kernels.json"), device), 75, 30),
        Step("rates", study("rates", record("rates.json"), *rates), 115, 80, (JPEG, "h5py")),
        Step("nvjpeg", study("nvjpeg", record("nvjpeg.json"), place.data, device), 30, 15, (JPEG, "torchvision")),
        Step("selftest", selftest, 60, 25, (JPEG,)),
        Step("tests", tests("tests.xml", *TESTS, SELFTEST_TESTS), 120, 80, pytest),
        Step("dali", study("dali", record("dali.json"), place.data, device), 100, 75, (JPEG, DALI)),
        Step("dali-rates", dali_rates, 90, 65, (JPEG, "h5py", DALI)),
        Step("dali-tests", tests("tests-dali.xml", *DALI_TESTS), 80, 60, (*pytest, DALI)),
        Step("bench-resnet18-torch", resnet18, 65, 52, (JPEG,), True),
        Step("bench-resnet50-hdf5", resnet50, 65, 52, (JPEG, "h5py"), True),
        Step("train", (*penstock, *train, "--batch-size", "64", "--json", record("train.json")), 60, 30, (JPEG,), True),
        Step("memcheck", (*memcheck, *study("kernels", "-", device, "--check")), 60, 40, ("compute-sanitizer",), True),
        Step("turboloader", turbo, 60, 30, (JPEG, "turboloader")),
    ]


Run = Callable[[Step, float], "int | None"]


def run_process(step: Step, seconds: float, environment: Mapping[str, str] | None = None) -> int | None:
    """Run a step in its own process group; return its exit code, or None if it reached its time limit."""
    process = subprocess.Popen(step.command, start_new_session=True, env=environment)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, sign)
                try:
                    process.wait(LEAVE_S)
                except subprocess.TimeoutExpired:
                    continue


def run_steps(
    wanted: Sequence[Step],
    results: Path,
    budget_s: float,
    *,
    run: Run = run_process,
    clock: Callable[[], float] = time.monotonic,
    has: Callable[[str], bool] = lambda name: True,
) -> dict[str, str]:
    """Run steps for `budget_s` seconds; return the outcome of each, which the summary contains after every step.

    has: returns whether a module or program is installed; called before each step that needs it.
    """
    begin, outcome = clock(), dict[str, str]()
    for step in wanted:
        left = budget_s - (clock() - begin)
        if missing := [name for name in step.needs if not has(name)]:
            outcome[step.name] = f"skipped: no {', '.join(missing)} here"
        elif left < step.least_s:
            outcome[step.name] = f"skipped: {max(0.0, left):.0f} s left"
        else:
            limit = min(step.most_s, left)
            print(f"bench-gpu: {step.name} at {clock() - begin:.0f} s, at most {limit:.0f} s", flush=True)
            start = clock()
            try:
                ending = _ending(run(step, limit))
            except OSError as error:
                ending = f"failed: {error}"
            outcome[step.name] = f"{ending} after {clock() - start:.0f} s"
        print(f"bench-gpu: {step.name}: {outcome[step.name]}", flush=True)
        save(results, outcome)
    return outcome


def _ending(code: int | None) -> str:
    if code is None:
        return "failed: time limit reached"
    if code < 0:
        return f"failed: killed by {signal.Signals(-code).name}"
    return f"failed with {code}" if code else "done"


def save(results: Path, outcome: Mapping[str, str]) -> None:
    """Write the summary, and all records as one file for a machine that returns only a few."""
    write_json(results / "summary.json", outcome)
    part = results / "records.tar.gz.part"
    with tarfile.open(part, "w:gz") as archive:
        for path in sorted(results.glob("*.json")) + sorted(results.glob("*.xml")):
            archive.add(path, path.name)
    os.replace(part, results / "records.tar.gz")


def find(name: str, paths: Sequence[str]) -> bool:
    """Return whether a module is on one of the paths, without importing it, or a program on PATH."""
    importlib.invalidate_caches()  # a missing folder may have been unpacked since
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, paths)
        if spec is None:
            return shutil.which(name) is not None
        paths = list(spec.submodule_search_locations or ())
    return True


def await_folder(folder: Path, most_s: float = UNPACK_S) -> None:
    """Wait while a folder is being unpacked, under its name with .part."""
    end = time.monotonic() + most_s
    while not folder.is_dir() and Path(f"{folder}.part").is_dir() and time.monotonic() < end:
        time.sleep(0.2)


def main(arguments: Sequence[str] | None = None, **control: Any) -> int:
    """Run the steps; return 1 if one failed. Skipped steps are not failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="folder of the records")
    parser.add_argument("--work", type=Path, required=True, help="folder for the demo set and the cache")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds")
    parser.add_argument("--data", help="folder of photos; default: the demo set")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", help="names of steps, separated by commas")
    parser.add_argument("--dali", default="", help="folder with DALI, which the steps without DALI do not get")
    given = parser.parse_args(arguments)
    given.results.mkdir(parents=True, exist_ok=True)
    given.work.mkdir(parents=True, exist_ok=True)
    demo = str(given.work / "demo")
    data = given.data or f"{demo}/train"
    all_steps = steps(Place(given.results.resolve(), data, demo, str(given.work / "gpu.h5"), given.device))
    only = [step.name for step in all_steps] if given.only is None else given.only.split(",")
    if unknown := sorted(set(only) - {step.name for step in all_steps}):
        parser.error(f"--only: no step {', '.join(unknown)}; there are {', '.join(step.name for step in all_steps)}")
    # Plugins of a machine's pytest may need missing packages; our tests need only the plugin that the command names.
    plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    path = os.pathsep.join(filter(None, (given.dali, plain.get("PYTHONPATH"))))

    def run(step: Step, seconds: float) -> int | None:
        return run_process(step, seconds, {**plain, "PYTHONPATH": path} if DALI in step.needs else plain)

    wanted = [step for step in all_steps if step.name in only]

    def has(name: str) -> bool:
        if name == DALI:
            await_folder(Path(given.dali or "."))
        return find(name, [given.dali or ".", *sys.path])

    control = {"run": run, "has": has, **control}
    outcome = run_steps(wanted, given.results, given.budget, **control)
    return int(any(ending.startswith("failed") for ending in outcome.values()))


if __name__ == "__main__":
    sys.exit(main())
