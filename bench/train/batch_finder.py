"""Finds the largest batch that fits: doubles the size until memory runs out, then halves the gap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from penstock.bench.train.resident_run import ResidentRun, measure_here, measure_in_child

BatchProbe = Callable[[int], int | None]
OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True, kw_only=True)
class BatchTrial:
    """Hold the trial of one batch size; peak_bytes is None if the batch did not fit or the peak is unknown."""

    batch_size: int
    fits: bool
    peak_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class BatchSearch:
    """Hold the largest batch size that fits (None if not even one image does) and all tried sizes in order."""

    largest: int | None
    trials: tuple[BatchTrial, ...]


def find_batch_size(
    probe: BatchProbe,
    *,
    start: int = 8,
    limit: int = 65536,
    on_trial: Callable[[BatchTrial], None] = lambda trial: None,
) -> BatchSearch:
    """Return the largest batch size up to `limit` that fits, to within a sixteenth.

    `probe` runs a batch of a given size; it returns its peak memory or None, and raises MemoryError or OutOfMemoryError
    if it does not fit.
    """
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
    while good < size < bad:  # double, or halve until a size fits
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


def probe_of(run: ResidentRun, *, budget_bytes: int | None = None) -> BatchProbe:
    """Return a probe that runs a batch of a given size and returns its peak memory in addition to the process's.

    On a CPU each size runs in a new process, the only way to see its peak. A peak above `budget_bytes` counts as out of
    memory.
    """
    measure = measure_in_child if run.settings.device == "cpu" else measure_here

    def probe(batch_size: int) -> int | None:
        peak = measure(replace(run, batch_size=batch_size * run.settings.accumulate)).peak_bytes
        if peak is not None and budget_bytes is not None and peak > budget_bytes:
            raise MemoryError(f"{peak:,} bytes are above the budget of {budget_bytes:,}")
        return peak

    return probe
