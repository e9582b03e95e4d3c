"""Makes learning-rate schedules by name, with one value per update."""

from __future__ import annotations

import math

from torch.optim.lr_scheduler import CyclicLR, LambdaLR, LRScheduler, OneCycleLR
from torch.optim.optimizer import Optimizer

from penstock.bench.train.step.technique_settings import ScheduleSettings


def make_schedule(optimizer: Optimizer, settings: ScheduleSettings, *, total_updates: int | None) -> LRScheduler | None:
    """Return the schedule of the settings, with the optimiser's learning rates as peaks.

    Returns None for a constant learning rate: with schedule "constant", or if the number of updates is unknown. Raises
    ValueError if there are too few updates for the schedule.
    """
    if settings.schedule == "constant" or total_updates is None:
        return None
    peaks = [group["lr"] for group in optimizer.param_groups]
    if settings.schedule == "cosine":
        return cosine_with_warmup(optimizer, warmup=settings.warmup, total_steps=total_updates)
    if settings.schedule == "onecycle":
        if total_updates < 3:
            raise ValueError(f"schedule='onecycle' needs at least 3 updates, got {total_updates}")
        # Below 1.5 updates torch divides by a rise of length zero. Momentum stays constant: less state to save.
        rise = max(settings.warmup, 1.5 / total_updates)
        return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_updates, pct_start=rise, cycle_momentum=False)
    half = max(1, round(total_updates / settings.cycles / 2))
    return CyclicLR(optimizer, base_lr=[lr / 10 for lr in peaks], max_lr=peaks, step_size_up=half, cycle_momentum=False)


def cosine_with_warmup(optimizer: Optimizer, *, warmup: float, total_steps: int) -> LambdaLR:
    """Return a schedule that rises linearly during `warmup` of the steps, then falls to zero as half a cosine.

    Not torch's SequentialLR(LinearLR, CosineAnnealingLR): its state dict differs, and checkpoints would not load.
    """
    rising = max(1, round(warmup * total_steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step + 1 - rising) / (total_steps + 1 - rising))))

    return LambdaLR(optimizer, factor)
