"""Times asynchronous work of a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_ms(work: Callable[[], object], device: torch.device, repeat: int = 15) -> float:
    """Return the median time of `work` on the device, by its events, after two calls; on a CPU, of one call."""
    if device.type != "cuda":
        return host_ms(work, device)
    for _ in range(2):
        work()
    synchronize(device)
    times = []
    for _ in range(repeat):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return round(statistics.median(times), 4)


def host_ms(work: Callable[[], object], device: torch.device) -> float:
    """Return how long the host is busy with one call of `work`, which the device may finish later."""
    synchronize(device)
    start = time.perf_counter()
    work()
    return round(1e3 * (time.perf_counter() - start), 3)
