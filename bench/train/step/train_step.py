"""One training step: forward, backward, optimiser, schedule. Only fp16 without a fused optimiser waits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from penstock.bench.record.loader_rate import Batches
from penstock.bench.train.step.activation_checkpoints import checkpoint_activations
from penstock.bench.train.step.optimizers import make_optimizer
from penstock.bench.train.step.schedules import make_schedule
from penstock.bench.train.step.settings import TrainSettings
from penstock.pipelines.errors import LoaderError

PADDING_LABEL = -1
# Keeps the gradients of accumulated sums small enough for fp16; a power of two avoids rounding.
_SUM_SCALE = 1 / 256


def autocast(settings: TrainSettings) -> torch.autocast:
    """Return the context of the forward pass, with lower precision if requested."""
    on = settings.amp != "off"
    dtype = settings.image_dtype if on else None
    return torch.autocast(torch.device(settings.device).type, dtype=dtype, enabled=on)


def class_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean float32 cross-entropy over labelled rows of (N, num_classes) logits; 0 if none is labelled.

    `labels` are int64 (N,), -1 for padding, or floating-point soft targets (N, num_classes), zero rows for padding.
    Not `reduction="mean"`: that is 0 / 0 for a batch with only padding.
    """
    count = num_labelled(labels).clamp(min=1)
    if labels.ndim == 2:
        # smoothed here: cross_entropy would give padding rows a share of every class
        share = is_labelled(labels)[:, None] * (label_smoothing / labels.shape[1])
        return cross_entropy(logits.float(), labels * (1 - label_smoothing) + share, reduction="sum") / count
    total = cross_entropy(
        logits.float(), labels, ignore_index=PADDING_LABEL, label_smoothing=label_smoothing, reduction="sum"
    )
    return total / count


def is_labelled(labels: Tensor) -> Tensor:
    """Return which rows have a label: bool (N,). `labels`: as for `class_loss`."""
    return (labels > 0).any(1) if labels.ndim == 2 else labels != PADDING_LABEL


def num_labelled(labels: Tensor) -> Tensor:
    """Count the rows that are not padding: int64 scalar on the labels' device."""
    return is_labelled(labels).sum()


def on_device(batches: Batches, settings: TrainSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) on the device, from batches that begin with them.

    Images are floating point (N, C, H, W) in the settings' memory format, float32 unless AMP is on. Copies from pinned
    host memory do not wait. Raises TypeError for integer images, which the loader has to normalise.
    """
    dtype = torch.float32 if settings.amp == "off" else None
    for images, labels, *_ in batches:
        if not images.is_floating_point():
            raise TypeError(
                f"the model needs floating point images, got {images.dtype}: pass a float dtype to the loader"
            )
        images = images.to(settings.device, dtype, non_blocking=True, memory_format=settings.memory_format)
        yield images, labels.to(settings.device, non_blocking=True)


class TrainStep:
    """Trains a model batch by batch: `step(images, labels) -> loss`. Moves it to the device and to training mode.

    Images (N, 3, H, W) and labels are those of `on_device` and `class_loss`. The loss is the mean over the batch, a
    float32 scalar on the device without a graph. The weights are updated after every `settings.accumulate` batches and
    after the `last` one, with the gradient of the mean over the labelled samples of those batches.

    total_steps: number of updates in the learning-rate schedule; without it the learning rate is constant.

    Attributes:
        module: the model, moved to the device.
        parallel: the model as DistributedDataParallel if torch.distributed is initialised, else None. Gradients are
            then the mean over ranks, which exchange them once per update.
        model: the model to call: `parallel` or else `module`, compiled if requested.
        schedule: schedule of the learning rate; None if it is constant.
    """

    def __init__(self, model: nn.Module, settings: TrainSettings, *, total_steps: int | None = None) -> None:
        self.settings = settings
        model.train()
        self.module = model.to(settings.device, memory_format=settings.memory_format)  # type: ignore[call-overload]
        checkpoint_activations(self.module, settings.checkpointing, settings.segments)
        self.parallel = _data_parallel(self.module)
        self.model = _compile_model(self.parallel or self.module, settings.compile)
        self._weights = [p for p in self.module.parameters() if p.requires_grad]
        world_size = dist.get_world_size() if self.parallel else 1
        self.optimizer = make_optimizer(self.module, settings, lr=settings.peak_lr(world_size))
        self.schedule = make_schedule(self.optimizer, settings, total_updates=total_steps)
        self.scaler = torch.amp.GradScaler(torch.device(settings.device).type, enabled=settings.amp == "fp16")
        self.updates = 0
        self._pending = 0  # accumulated batches since the last update
        self._labelled: Tensor | None = None  # number of labelled samples in them
        if self.scaler.is_enabled():
            self.optimizer.step()  # a no-op that keeps schedules from warning if fp16 skips the first real one

    def __call__(self, images: Tensor, labels: Tensor, *, last: bool = False) -> Tensor:
        update = last or self._pending + 1 >= self.settings.accumulate
        try:
            with nullcontext() if update or not self.parallel else self.parallel.no_sync():  # no exchange of gradients
                loss = self._backward(images, labels)
        except RuntimeError as error:
            _explain_compiler_failure(error)
            raise
        if update:
            self._update()
        return loss.detach()

    def forget(self) -> None:
        """Drop the gradients of batches without an update."""
        self.optimizer.zero_grad(set_to_none=True)
        self._pending, self._labelled = 0, None

    def _backward(self, images: Tensor, labels: Tensor) -> Tensor:
        with autocast(self.settings):
            logits = self.model(images)
        loss = class_loss(logits, labels, label_smoothing=self.settings.label_smoothing)
        wanted = loss
        if self.settings.accumulate > 1:
            # An update's number of labelled samples is known only with its last batch: until then gradients are sums.
            labelled = num_labelled(labels)
            self._labelled = labelled if self._labelled is None else self._labelled + labelled
            wanted = loss * (labelled * _SUM_SCALE)
        self.scaler.scale(wanted).backward()  # type: ignore[no-untyped-call]
        self._pending += 1
        return loss

    def _update(self) -> None:
        if self._labelled is not None:
            gradients = [p.grad for p in self._weights if p.grad is not None]
            torch._foreach_mul_(gradients, self._of_the_mean(self._labelled))
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self._weights, self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.forget()
        if self.schedule is not None:
            self.schedule.step()
        self.updates += 1

    def _of_the_mean(self, labelled: Tensor) -> Tensor:
        """Return the factor that turns gradients of the scaled sum (averaged over ranks) into gradients of the mean."""
        samples = labelled.to(torch.float32)
        if self.parallel:
            dist.all_reduce(samples)
            samples = samples / dist.get_world_size()
        return 1 / (_SUM_SCALE * samples.clamp(min=1 / 1024))


def _data_parallel(module: nn.Module) -> DistributedDataParallel | None:
    if not (dist.is_available() and dist.is_initialized()):
        return None
    # Gradients are views of the exchanged buckets, which saves a copy. Validation and checkpoints use rank 0's running
    # statistics, so that they need not be exchanged at each step.
    known = inspect.signature(DistributedDataParallel).parameters
    of_buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # older torch
    settings: dict[str, Any] = {"gradient_as_bucket_view": True, of_buffers: False}
    return DistributedDataParallel(module, **settings)


def _compile_model(model: nn.Module, mode: str) -> nn.Module:
    """Return the model, to be compiled at its first run unless mode is "off".

    Raises LoaderError E-DEPENDENCY if torch cannot compile.
    """
    if mode == "off":
        return model
    try:
        return cast(nn.Module, torch.compile(model, mode=mode))
    except (RuntimeError, ImportError) as error:  # no compiler for this Python, or parts of torch are missing
        raise _cannot_compile(error) from error


def _explain_compiler_failure(error: Exception) -> None:
    """Raise LoaderError E-DEPENDENCY if `error` comes from torch's compiler; return otherwise."""
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        raise _cannot_compile(error) from error


def _cannot_compile(error: Exception) -> LoaderError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return LoaderError(
        "E-DEPENDENCY",
        f"torch.compile does not work here ({lines[0][:200]})",
        fix="install a C++ compiler (g++), and triton for CUDA, or pass compile='off'",
    )
