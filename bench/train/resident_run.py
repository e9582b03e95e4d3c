"""Measures images/s and peak memory of the model on one resident batch, in this process or a new one."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.rates import random_batch, resident_batch_rate
from penstock.bench.train.step.settings import TrainSettings
from penstock.loaders.system.json_file import decode_json
from penstock.pipelines.errors import CANNOT_ALLOCATE, LoaderError


@dataclass(frozen=True, kw_only=True)
class ResidentRun:
    """Define a run. Raises ValueError for a batch that cannot be divided.

    Attributes:
        batch_size: images per update, in settings.accumulate parts.
        size: height and width of the images, in pixels.
        data_parallel: whether to spread the batch over all GPUs of this process.
    """

    settings: TrainSettings
    num_classes: int
    batch_size: int
    size: int
    seconds: float
    data_parallel: bool = False

    def __post_init__(self) -> None:
        if self.batch_size % self.settings.accumulate:
            raise ValueError(f"a batch of {self.batch_size} cannot be divided by accumulate={self.settings.accumulate}")


@dataclass(frozen=True, kw_only=True)
class ResidentResult:
    """Hold the measurements of one run.

    Attributes:
        images_per_s: median over the windows of the measurement (see Rate).
        peak_bytes: peak memory minus the memory in use before the model was built; None if unknown.
    """

    images_per_s: float
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The JSON output of a run's process: its result, or the reason for its absence."""

    result: ResidentResult | None = None
    reason: str = ""
    out_of_memory: bool = False


class CannotRun(ValueError):
    """The reason why this machine cannot do a run."""


def measure_here(run: ResidentRun) -> ResidentResult:
    """Train on random images in this process. Raises CannotRun, MemoryError or torch.OutOfMemoryError."""
    settings = run.settings
    gc.collect()
    memory = _PeakMemory(settings.device)
    try:
        model = build_model(settings, run.num_classes)
        if run.data_parallel:
            model = nn.DataParallel(model)
        shape = (run.batch_size // settings.accumulate, 3, run.size, run.size)
        rate = resident_batch_rate(
            model, settings, batch=random_batch(shape, run.num_classes, settings.seed), seconds=run.seconds
        )
    except LoaderError as error:
        raise CannotRun(error.cause) from error
    except ValueError as error:
        raise CannotRun(str(error)) from error
    except RuntimeError as error:
        if CANNOT_ALLOCATE in str(error):
            raise MemoryError(f"a batch of {run.batch_size} does not fit") from error
        raise
    finally:
        if settings.compile != "off":
            torch.compiler.reset()
    return ResidentResult(images_per_s=rate.median, peak_bytes=memory.read())


def measure_in_child(run: ResidentRun) -> ResidentResult:
    """Train in a new process, to measure its peak memory. Raises CannotRun, or MemoryError on a CPU."""
    # PYTHONPATH is not enough: a caller may have changed sys.path.
    code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import run_child; run_child()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asdict(run)), capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode == -9:
        raise MemoryError(f"the process of a batch of {run.batch_size} was killed (SIGKILL)")
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CannotRun(last)
    answer = decode_json(lines[-1], _Answer)
    if answer.result is None:
        raise MemoryError(answer.reason) if answer.out_of_memory else CannotRun(answer.reason)
    return answer.result


def run_child() -> None:
    """Read a run as JSON from standard input and write its result to standard output, in the new process."""
    try:
        answer = _Answer(result=measure_here(decode_json(sys.stdin.read(), ResidentRun)))
    except (CannotRun, MemoryError) as error:
        answer = _Answer(reason=str(error), out_of_memory=isinstance(error, MemoryError))
    print(json.dumps(asdict(answer)))


class _PeakMemory:
    """Reads the peak memory since its creation: allocated on a CUDA device, else resident in this process (Linux)."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # otherwise a numbered device is invalid
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before: int | None = torch.cuda.memory_allocated(self._device)
            return
        with contextlib.suppress(OSError):  # without a reset, the peak counts from the start of this process
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM: see proc(5)
        self._before = _status_bytes("VmRSS")

    def read(self) -> int | None:
        """Return bytes; None if the system does not report them."""
        if self._before is None:
            return None
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        peak = _status_bytes("VmHWM")
        return None if peak is None else peak - self._before


def _status_bytes(field: str) -> int | None:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
