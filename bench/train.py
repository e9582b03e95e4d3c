"""The training loop: any loader of (images, labels), one report an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from penstock.bench.evaluate import Evaluation, evaluate, sum_over_ranks
from penstock.bench.measure import Clock, Rate, StepTimer, Stopwatch
from penstock.bench.train_settings import TrainSettings
from penstock.bench.train_step import TrainStep, labelled, make_step, on_device
from penstock.pipelines.errors import LoaderError

Loader = Iterable[tuple[Tensor, ...]]
WARMUP_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """One epoch of training: what was learned, how fast, and where the time went.

    loss: mean over the labelled training samples of all ranks, as they were seen. validation: None without its loader.
    images, seconds: labelled training samples of all ranks, and the wall time they took. steps: of this rank.
    images_per_s: of this rank; None if every step was warm-up. wait_share, host_wait_share: see `StepTimes`.
    """

    epoch: int
    loss: float
    validation: Evaluation | None
    images: int
    steps: int
    seconds: float
    validation_seconds: float
    images_per_s: Rate | None
    wait_share: float
    host_wait_share: float


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """A whole run; `dataclasses.asdict` of it is JSON-serialisable. seconds: wall time with validation."""

    settings: TrainSettings
    parameters: int
    epochs: tuple[EpochReport, ...]
    seconds: float


def train(
    model: nn.Module,
    loader: Loader,
    settings: TrainSettings,
    *,
    validation: Loader | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainReport:
    """Train a classifier for `settings.epochs` epochs, on every rank of torch.distributed where that is initialised.

    loader: batches (images, labels, ...) as `on_device` takes them, with a length; `set_epoch` is called if it exists.
    validation: the same, evaluated after each epoch. on_epoch is called with each epoch's report.
    The first steps of the run, at most ten and at most half an epoch, are warm-up and not timed.
    Raises ValueError if the loader is empty, FloatingPointError if the loss of an epoch is not finite, LoaderError
    E-MISUSE if ranks would make different numbers of steps.
    """
    watch = Stopwatch()
    steps_per_epoch = _common_length(loader, settings)
    reports: list[EpochReport] = []
    with _seeded(settings), cudnn_benchmark(settings.cudnn_benchmark):
        step = make_step(model, settings, total_steps=settings.epochs * steps_per_epoch)
        for epoch in range(settings.epochs):
            warmup_steps = min(WARMUP_STEPS, steps_per_epoch // 2) if epoch == 0 else 0
            report = _train_epoch(step, loader, epoch, warmup_steps=warmup_steps, validation=validation)
            reports.append(report)
            if on_epoch is not None:
                on_epoch(report)
    return TrainReport(
        settings=settings,
        parameters=sum(p.numel() for p in model.parameters()),
        epochs=tuple(reports),
        seconds=watch.seconds,
    )


def _train_epoch(
    step: TrainStep, loader: Loader, epoch: int, *, warmup_steps: int, validation: Loader | None
) -> EpochReport:
    _set_epoch(loader, epoch)
    watch = Stopwatch()
    timer = StepTimer(Clock(step.settings.device))
    # Summed on the device and read once an epoch: reading a loss waits for the device, which then idles.
    totals = torch.zeros(2, dtype=torch.float64, device=step.settings.device)  # loss, samples
    num_steps = 0
    for images, labels in timer.watch(on_device(loader, step.settings), _num_images):
        loss = step(images, labels)
        count = labelled(labels).sum()
        totals += torch.stack([loss.double() * count, count.double()])
        num_steps += 1
        if num_steps == warmup_steps:
            timer.restart()
    times = timer.times()
    loss_sum, num_labelled = sum_over_ranks(totals).tolist()
    train_seconds = watch.seconds
    _check_loss(loss_sum, num_labelled, epoch)

    evaluation = None
    if validation is not None:
        _same_buffers_on_all_ranks(step.module)
        evaluation = evaluate(step.module, validation, step.settings)
    return EpochReport(
        epoch=epoch,
        loss=loss_sum / num_labelled,
        validation=evaluation,
        images=int(num_labelled),
        steps=num_steps,
        seconds=train_seconds,
        validation_seconds=watch.seconds - train_seconds,
        images_per_s=times.images_per_s,
        wait_share=times.wait_share,
        host_wait_share=times.host_wait_share,
    )


def _num_images(batch: tuple[Tensor, Tensor]) -> int:
    return batch[0].shape[0]


def _check_loss(loss_sum: float, num_labelled: float, epoch: int) -> None:
    if num_labelled == 0:
        raise ValueError(f"epoch {epoch} of the training loader held no labelled sample")
    if not isfinite(loss_sum):
        raise FloatingPointError(f"the loss of epoch {epoch} is {loss_sum}: lower lr, lengthen warmup or turn amp off")


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader, or torch's DistributedSampler in it, which epoch's order comes next."""
    owner = loader if hasattr(loader, "set_epoch") else getattr(loader, "sampler", None)
    if owner is not None and hasattr(owner, "set_epoch"):
        owner.set_epoch(epoch)


def _common_length(loader: Any, settings: TrainSettings) -> int:
    """Steps per epoch, the same on all ranks: a rank with one more would wait for ever in its gradients' all-reduce."""
    try:
        steps = len(loader)
    except TypeError:
        raise ValueError("training needs a loader with a length: the learning-rate schedule ends with it") from None
    if steps == 0:
        raise ValueError("the training loader is empty: lower batch_size, or keep the last batch (drop_last=False)")
    if dist.is_available() and dist.is_initialized():
        extremes = torch.tensor([steps, -steps], device=settings.device)
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        most, least = extremes[0].item(), -extremes[1].item()
        if most != least:
            raise LoaderError(
                "E-MISUSE",
                f"ranks would make {least} to {most} steps per epoch",
                fix="give each rank a loader of the same length, as create_loader does",
                rank=dist.get_rank(),
            )
    return steps


def _same_buffers_on_all_ranks(module: nn.Module) -> None:
    """Rank 0's running statistics everywhere, so that all ranks evaluate one model."""
    if dist.is_available() and dist.is_initialized():
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)


@contextmanager
def _seeded(settings: TrainSettings) -> Iterator[None]:
    """Dropout and the like from `settings.seed`; the caller's generators are as before afterwards."""
    device = torch.device(settings.device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings.seed)
        yield


@contextmanager
def cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """`torch.backends.cudnn.benchmark` for the time of the context."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
