"""Writes a trace of a few training steps, for chrome://tracing or Perfetto."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

_WAIT, _WARMUP, _ACTIVE = 1, 1, 3
PROFILED_STEPS = _WAIT + _WARMUP + _ACTIVE


@contextmanager
def profiled_steps(file: str | None, device: str) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; steps three to five are written to `file`, if not None.

    The trace contains host operators with shapes, and kernels of a CUDA device; only the first rank writes one.
    """
    if file is None or (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
        yield lambda: None
        return
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if torch.device(device).type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=_WAIT, warmup=_WARMUP, active=_ACTIVE, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(os.fspath(file)),
        record_shapes=True,
    ) as profiler:
        yield profiler.step
