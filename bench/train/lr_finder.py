"""Finds a learning rate: sweeps from far too low to far too high and finds where the loss falls fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.bench.train.evaluate import sum_over_ranks
from penstock.bench.train.step.train_step import TrainStep

_SMOOTHING = 0.9
_DIVERGED = 4.0  # times the lowest loss
_MIN_UPDATES = 10


@dataclass(frozen=True, kw_only=True)
class LrSweep:
    """Hold the rates of a sweep, the loss of one update at each, and the suggested rate."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float


def find_lr(
    step: TrainStep,
    batches: Iterator[tuple[Tensor, Tensor]],
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    num_updates: int = 100,
) -> LrSweep:
    """Sweep the learning rate exponentially from `lowest` to `highest` (Smith 2015, arXiv:1506.01186).

    `step`, without a schedule, is trained; `batches` are endless and on the device. Waits for the device at each
    update, and ends early if the loss diverges. Raises ValueError if the loss never falls.
    """
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    mean = 0.0
    for number in range(num_updates):
        rate = lowest * (highest / lowest) ** (number / (num_updates - 1))
        for group in step.optimizer.param_groups:
            group["lr"] = rate
        loss = _update(step, batches)
        if not math.isfinite(loss):
            break
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        rates.append(rate)
        losses.append(loss)
        smoothed.append(mean / (1 - _SMOOTHING ** (number + 1)))
        if number >= _MIN_UPDATES and smoothed[-1] > _DIVERGED * min(smoothed):
            break
    return LrSweep(
        rates=tuple(rates), losses=tuple(losses), smoothed=tuple(smoothed), suggestion=steepest(rates, smoothed)
    )


def steepest(rates: list[float], losses: list[float]) -> float:
    """Return the rate at which the loss falls fastest over the logarithm of the rate, before its lowest point.

    Raises ValueError if it does not fall.
    """
    end = int(np.argmin(losses)) + 1 if losses else 0
    if end < 3:
        raise ValueError("the loss never falls in the sweep: start lower, or check data and model")
    slopes = np.gradient(np.asarray(losses[:end]), np.log(rates[:end]))
    return rates[int(np.argmin(slopes))]


def _update(step: TrainStep, batches: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Return the mean loss of one update's batches over all ranks, so that they end the sweep together."""
    losses = [step(*next(batches)) for _ in range(step.settings.accumulate)]
    total = torch.stack([torch.stack(losses).mean(), torch.ones_like(losses[0])])
    loss, ranks = sum_over_ranks(total).tolist()
    return float(loss / ranks)
