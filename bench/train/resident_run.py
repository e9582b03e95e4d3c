"""The model alone on a batch that is there already: images/s and peak memory, in this process or one of its own."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from penstock.bench.step.models import build_model
from penstock.bench.step.rates import resident_batch_rate
from penstock.bench.step.settings import TrainSettings
from penstock.pipelines.errors import CANNOT_ALLOCATE, LoaderError


@dataclass(frozen=True, kw_only=True)
class ResidentRun:
    """What to run. batch_size: images an update, in settings.accumulate parts. size: height and width of images.

    Raises ValueError for a batch that cannot be divided.
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
    """images_per_s: median over windows. peak_bytes: beyond what was taken before the model; None if unknown."""

    images_per_s: float
    peak_bytes: int | None


class CannotRun(Exception):
    """A run that this machine cannot do; the message says why."""


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
        rate = resident_batch_rate(model, settings, shape=shape, num_classes=run.num_classes, seconds=run.seconds)
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
    """The same in a process of its own, whose peak memory is the run's. Raises CannotRun or MemoryError."""
    # Not the environment variable alone: a caller may have changed sys.path.
    code = f"import sys; sys.path[:0] = {sys.path!r}; from {__name__} import answer; answer()"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(asdict(run)), capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode == -9:
        raise MemoryError(f"the process of a batch of {run.batch_size} was killed (SIGKILL)")
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CannotRun(last)
    found: dict[str, Any] = json.loads(lines[-1])
    if "reason" in found:
        raise CannotRun(found["reason"])
    if "memory" in found:
        raise MemoryError(found["memory"])
    return ResidentResult(**found)


def answer() -> None:
    """What the process runs: a run as JSON on standard input, its result on standard output."""
    request = json.loads(sys.stdin.read())
    run = ResidentRun(**{**request, "settings": TrainSettings(**request["settings"])})
    try:
        found = asdict(measure_here(run))
    except CannotRun as error:
        found = {"reason": str(error)}
    except MemoryError as error:
        found = {"memory": str(error)}
    print(json.dumps(found))


class _PeakMemory:
    """Peak memory since it was made: allocated on a CUDA device, resident in this process otherwise (Linux)."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before: int | None = torch.cuda.memory_allocated(self._device)
            return
        with contextlib.suppress(OSError):  # else it counts from the start of this process
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew: see proc(5)
        self._before = _status_bytes("VmRSS")

    def read(self) -> int | None:
        """Bytes; None where the system does not tell."""
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
