"""Lets a training step be tried out and leaves it as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from penstock.bench.step.train_step import TrainStep


@contextmanager
def restoring(step: TrainStep) -> Iterator[None]:
    """Restore weights, statistics, optimiser, scaler, learning rates and generators afterwards; gradients are dropped.

    The copy lies in host memory, so that it takes nothing of the device.
    """
    device = torch.device(step.settings.device)
    parts: dict[str, Any] = {"module": step.module, "optimizer": step.optimizer, "scaler": step.scaler}
    before = {name: _on_host(part.state_dict()) for name, part in parts.items()}
    updates = step.updates
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            step.forget()
            for name, part in parts.items():
                part.load_state_dict(before[name])
            step.updates = updates


def _on_host(value: Any) -> Any:
    """Copy a state dict, with its tensors in host memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_host(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_on_host(item) for item in value]
    return copy.deepcopy(value)
