"""Validates exactly: each sample counts once, on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from penstock.bench.record.loader_rate import Batches
from penstock.bench.train.step.settings import TrainSettings
from penstock.bench.train.step.train_step import autocast, class_loss, is_labelled, on_device


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Hold mean cross-entropy, top-1 accuracy (0 to 1) and number of all labelled samples of all ranks."""

    loss: float
    accuracy: float
    images: int


def evaluate(model: nn.Module, loader: Batches, settings: TrainSettings) -> Evaluation:
    """Return loss and accuracy of a model on its device, in evaluation mode; rows with label -1 do not count.

    Ranks may make different numbers of steps. Reads the device once. Raises ValueError if no sample has a label.
    """
    totals = torch.zeros(3, dtype=torch.float64, device=settings.device)  # loss, correct, samples
    was_training = model.training
    model.eval()
    try:
        for images, labels in on_device(loader, settings):
            # Not around the loader: tensors allocated in inference mode could not be used for training later.
            with torch.inference_mode():
                with autocast(settings):
                    logits = model(images)
                labelled = is_labelled(labels)
                count = labelled.sum()
                correct = ((logits.argmax(1) == labels) & labelled).sum()
                totals += torch.stack([class_loss(logits, labels).double() * count, correct.double(), count.double()])
    finally:
        model.train(was_training)
    loss, correct, count = sum_over_ranks(totals).tolist()
    if count == 0:
        raise ValueError("no labelled sample to evaluate on")
    return Evaluation(loss=loss / count, accuracy=correct / count, images=int(count))


def sum_over_ranks(totals: Tensor) -> Tensor:
    """Sum the tensor in place over the ranks of torch.distributed, if initialised, and return it."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(totals)
    return totals
