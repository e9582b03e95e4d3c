"""One training step: forward, backward, optimiser, schedule; nothing in it waits for the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from penstock.bench.train_settings import TrainSettings

PADDING_LABEL = -1
_AMP_DTYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(settings: TrainSettings) -> torch.autocast:
    """The context in which the forward pass runs: lower precision where the settings ask for it, else nothing."""
    dtype = _AMP_DTYPES[settings.amp]
    return torch.autocast(torch.device(settings.device).type, dtype=dtype, enabled=dtype is not None)


def class_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy in float32, averaged over the labelled rows of (N, num_classes) logits; 0 if there is none.

    labels: int64 (N,), -1 for padding, or soft targets of floats (N, num_classes), rows of zeros for padding.
    Not `reduction="mean"`: that is 0 / 0 for a batch of padding alone.
    """
    is_labelled = labelled(labels)
    if labels.ndim == 2:
        # smoothed here: cross_entropy would give padding a share of every class
        labels = labels * (1 - label_smoothing) + is_labelled[:, None] * (label_smoothing / labels.shape[1])
        total = cross_entropy(logits.float(), labels, reduction="sum")
    else:
        total = cross_entropy(
            logits.float(), labels, ignore_index=PADDING_LABEL, label_smoothing=label_smoothing, reduction="sum"
        )
    return total / is_labelled.sum().clamp(min=1)


def labelled(labels: Tensor) -> Tensor:
    """Which rows are no padding: bool (N,), of labels or soft targets as `class_loss` takes them."""
    return (labels > 0).any(1) if labels.ndim == 2 else labels != PADDING_LABEL


def on_device(batches: Iterable[tuple[Tensor, ...]], settings: TrainSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """(images, labels) on the device, from batches that begin so and may lie on the host.

    Images leave as floating point (N, C, H, W) in the settings' memory format, in float32 unless AMP is on. Copies from
    pinned host memory do not wait. Raises TypeError for integer images: normalising them is the loader's part.
    """
    dtype = torch.float32 if settings.amp == "off" else None
    for images, labels, *_ in batches:
        if not images.is_floating_point():
            raise TypeError(f"the model needs floating point images, not {images.dtype}: give the loader a float dtype")
        images = images.to(settings.device, dtype, non_blocking=True, memory_format=settings.memory_format)
        yield images, labels.to(settings.device, non_blocking=True)


def sgd(model: nn.Module, settings: TrainSettings) -> torch.optim.SGD:
    """SGD with Nesterov momentum, as one fused kernel; weight decay on matrices and filters only."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    # Fused also because GradScaler then leaves the check for overflow to the kernel; else it reads a flag each step.
    optimizer = torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=True, fused=True)
    for p in parameters:
        # Fused SGD allocates its momentum uninitialised and does not fill it in a first step that overflows, which
        # fp16's first step does as a rule; from zeros the first step is the same as from nothing.
        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


def cosine_with_warmup(optimizer: torch.optim.Optimizer, *, warmup: float, total_steps: int) -> LambdaLR:
    """The learning rate of each step: a line up to lr during `warmup` of the steps, then half a cosine down to zero."""
    rising = max(1, round(warmup * total_steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step + 1 - rising) / (total_steps + 1 - rising))))

    return LambdaLR(optimizer, factor)


class TrainStep:
    """`step(images, labels) -> loss`: one update of a model that it moves to the device.

    images (N, 3, H, W) and labels as `on_device` yields them and `class_loss` takes them. Returns the mean loss of the
    batch, a float32 scalar on the device without a graph. `module` is the model, `model` what runs it: data parallel if
    torch.distributed is initialised, gradients then being the mean over ranks.
    """

    def __init__(self, model: nn.Module, settings: TrainSettings, *, total_steps: int | None = None) -> None:
        self.settings = settings
        self.module = model.to(settings.device, memory_format=settings.memory_format)  # type: ignore[call-overload]
        self.model = _data_parallel(self.module)
        self.optimizer = sgd(self.module, settings)
        self.schedule = (
            cosine_with_warmup(self.optimizer, warmup=settings.warmup, total_steps=total_steps)
            if settings.schedule == "cosine" and total_steps is not None
            else None
        )
        self.scaler = torch.amp.GradScaler(torch.device(settings.device).type, enabled=settings.amp == "fp16")

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        with autocast(self.settings):
            logits = self.model(images)
        loss = class_loss(logits, labels, label_smoothing=self.settings.label_smoothing)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is not None:
            self.schedule.step()
        return loss.detach()


def make_step(model: nn.Module, settings: TrainSettings, *, total_steps: int | None = None) -> TrainStep:
    """A training step for the model, which moves to `settings.device` and into training mode.

    total_steps: the length of the learning-rate schedule; without it the learning rate is constant.
    """
    model.train()
    return TrainStep(model, settings, total_steps=total_steps)


def _data_parallel(module: nn.Module) -> nn.Module:
    if not (dist.is_available() and dist.is_initialized()):
        return module
    return cast(nn.Module, DistributedDataParallel(module))
