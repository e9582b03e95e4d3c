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


def probe_of(run: ResidentRun, *, budget_bytes: int | None = None) -> BatchProbe:
    """Return a probe that does a run with a batch of the given size; its peak is that beyond the process without it.

    On a CPU each size has a process of its own, the only way to see what it takes. A peak above `budget_bytes` counts
    as out of memory.
    """
    measure = measure_in_child if run.settings.device == "cpu" else measure_here

    def probe(batch_size: int) -> int | None:
        peak = measure(replace(run, batch_size=batch_size * run.settings.accumulate)).peak_bytes
        if peak is not None and budget_bytes is not None and peak > budget_bytes:
            raise MemoryError(f"{peak:,} bytes are above the budget of {budget_bytes:,}")
        return peak

    return probe
