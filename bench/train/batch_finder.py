"""Finds the largest batch that fits: doubles the size until memory runs out, then halves the gap."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from penstock.bench.step.train_step import TrainStep, on_device
from penstock.bench.train.resident_run import ResidentRun, measure_in_child
from penstock.bench.train.restored_step import restoring

BatchProbe = Callable[[int], int | None]
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True, kw_only=True)
class BatchTrial:
    """Hold what became of one batch size; its peak memory is None if it did not fit, or if that is unknown."""

    batch_size: int
    fits: bool
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """Hold the largest batch size that fitted (None if not even one image did) and every size tried, in order."""

    largest: int | None
    trials: tuple[BatchTrial, ...]


def find_batch_size(
    probe: BatchProbe,
    *,
    start: int = 8,
    limit: int = 65536,
    on_trial: Callable[[BatchTrial], None] = lambda trial: None,
) -> BatchSearch:
    """Return the largest batch size up to `limit` that the probe takes, to within a sixteenth.

    `probe` runs a batch of a size; it returns its peak memory or None, and raises MemoryError or torch.OutOfMemoryError
    if it does not fit. Raises ValueError unless 1 <= start <= limit.
    """
    if not 1 <= start <= limit:
        raise ValueError(f"start must lie between 1 and limit={limit}, got {start!r}")
    trials: list[BatchTrial] = []

    def fits(size: int) -> bool:
        peak, fitted = None, True
        try:
            peak = probe(size)
        except OUT_OF_MEMORY:
            fitted = False
        trials.append(BatchTrial(batch_size=size, fits=fitted, peak_bytes=peak))
        on_trial(trials[-1])
        return fitted

    good, bad, size = 0, limit + 1, start
    while good < size < bad:  # doubling, or halving while nothing has fitted yet
        if fits(size):
            good = size
            size = min(2 * size, limit)
        else:
            bad = size
            size = size // 2 if good == 0 else size
    while bad - good > max(1, good // 16) and good > 0 and bad <= limit:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return BatchSearch(largest=good or None, trials=tuple(trials))


def step_probe(step: TrainStep, *, size: int, num_classes: int, budget_bytes: int | None = None) -> BatchProbe:
    """Return a probe that makes two updates on random images of `size` pixels, and leaves `step` as it was.

    On a CUDA device the peak is what was allocated, and above `budget_bytes` counts as out of memory.
    """
    device = torch.device(step.settings.device)

    def probe(batch_size: int) -> int | None:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        with restoring(step):
            _two_updates(step, batch_size, size, num_classes)
        gc.collect()
        if device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(device)
        check_budget(peak, budget_bytes)
        return peak

    return probe


def child_probe(run: ResidentRun, *, budget_bytes: int | None = None) -> BatchProbe:
    """Return a probe that runs each size in a process of its own, the only way to see what a run on a CPU takes."""

    def probe(batch_size: int) -> int | None:
        peak = measure_in_child(replace(run, batch_size=batch_size * run.settings.accumulate)).peak_bytes
        check_budget(peak, budget_bytes)
        return peak

    return probe


def check_budget(peak: int | None, budget_bytes: int | None) -> None:
    """Raise MemoryError if the peak is above the budget."""
    if peak is not None and budget_bytes is not None and peak > budget_bytes:
        raise MemoryError(f"{peak:,} bytes are above the budget of {budget_bytes:,}")


def _two_updates(step: TrainStep, batch_size: int, size: int, num_classes: int) -> None:
    # Two, because the optimiser allocates its own memory in the first.
    batch = (torch.randn(batch_size, 3, size, size), torch.randint(num_classes, (batch_size,)))
    for _ in range(2 * step.settings.accumulate):
        for images, labels in on_device([batch], step.settings):
            step(images, labels)
