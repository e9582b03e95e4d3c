"""Measures images/s of the model alone, and of loader and model together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import torch
from torch import nn

from penstock.bench.record.clock import WARMUP_SHARE, Clock, Rate, StepTimer, StepTimes, Stopwatch, measure_rate
from penstock.bench.record.loader_rate import Batches, endless
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.torch_switches import torch_switches
from penstock.bench.train.step.train_step import TrainStep, on_device


def resident_batch_rate(
    model: nn.Module,
    settings: TrainSettings,
    *,
    batch: tuple[torch.Tensor, torch.Tensor],
    seconds: float,
    patience: float = math.inf,
) -> Rate:
    """Measure the model's ceiling: train on one resident batch (images, labels). Updates the weights.

    batch: for a comparison with the loader it must be one of the loader's: on random pixels a GPU draws more power and
    lowers its clock. patience: as for measure_rate.
    """
    [(images, labels)] = on_device([batch], settings)
    step = _bench_step(model, settings)

    def work() -> int:  # one update
        for _ in range(settings.accumulate):
            step(images, labels)
        return images.shape[0] * settings.accumulate

    with torch_switches(settings):
        return measure_rate(work, seconds=seconds, device=settings.device, patience=patience)


def random_batch(shape: Sequence[int], num_classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random float32 images of `shape` (N, 3, H, W) and labels, for runs without data."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator), torch.randint(num_classes, (shape[0],), generator=generator)


def training_times(
    model: nn.Module, settings: TrainSettings, *, loader: Batches, seconds: float, patience: float = math.inf
) -> StepTimes:
    """Train on the loader's batches, epoch after epoch, for about `seconds`.

    The first fifth, and at least two steps, is warm-up. At least three steps are measured, or one after `patience`
    times `seconds`. Updates the model's weights. Raises ValueError if an epoch has no batch.
    """
    timer = StepTimer(Clock(settings.device))
    with torch_switches(settings), closing(endless(loader)) as batches:
        step = _bench_step(model, settings)
        watched = timer.watch(on_device(batches, settings), lambda batch: batch[0].shape[0])
        watch = Stopwatch()
        for steps, (images, labels) in enumerate(watched):
            step(images, labels)
            if watch.seconds >= (WARMUP_SHARE if steps else patience) * seconds:
                break
        timer.restart()
        for steps, (images, labels) in enumerate(watched):
            step(images, labels)
            if (steps >= 3 and watch.seconds >= seconds) or (steps >= 1 and watch.seconds >= patience * seconds):
                break
        return timer.times()


def _bench_step(model: nn.Module, settings: TrainSettings) -> TrainStep:
    # The rate does not depend on lr, but training on noise may diverge at the run's lr.
    return TrainStep(model, replace(settings, lr=1e-4, lr_scaling="none", schedule="constant"))
