"""Implements activation checkpointing: keeps the inputs of a few blocks and recomputes the rest for gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class CheckpointedSequential(nn.Sequential):
    """A sequence that may run in `segments`, keeping only the input of each; 0 runs it normally.

    Unlike torch's `checkpoint_sequential`, it does not count a recomputed batch twice in batch norm, so that running
    statistics are those of a normal pass.
    """

    segments = 0

    def forward(self, features: Tensor) -> Tensor:
        """Run like nn.Sequential; in segments while training with gradients."""
        if not (self.segments and self.training and torch.is_grad_enabled()):
            return cast(Tensor, super().forward(features))  # type: ignore[no-untyped-call]
        count = min(self.segments, len(self))
        edges = [round(number * len(self) / count) for number in range(count + 1)]
        for begin, end in pairwise(edges):
            part = self[begin:end]
            contexts = partial(_contexts, part)
            features = checkpoint(part, features, use_reentrant=False, context_fn=contexts)
        return features


def checkpoint_activations(model: nn.Module, mode: Literal["off", "blocks", "segments"], segments: int) -> None:
    """Switch checkpointing on or off, for a bundled model or by a timm model's `set_grad_checkpointing`.

    Raises ValueError for a model that does not support `mode`; timm's do not support segments.
    """
    parts = [part for part in model.modules() if isinstance(part, CheckpointedSequential)]
    for part in parts:
        part.segments = {"off": 0, "blocks": len(part), "segments": segments}[mode]
    if parts or mode == "off":
        return
    if mode == "segments" or not hasattr(model, "set_grad_checkpointing"):
        raise ValueError(
            f"checkpointing={mode!r}: {type(model).__name__} does not support it; 'blocks' works with many timm models"
        )
    cast(Any, model).set_grad_checkpointing(True)


def _contexts(part: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _StatisticsKept(part)


class _StatisticsKept(AbstractContextManager[None]):
    """Keeps running statistics of batch norm unchanged: the batch has already been counted.

    Can be entered again, for a second backward pass.
    """

    def __init__(self, part: nn.Module) -> None:
        self._norms = [m for m in part.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]

    def __enter__(self) -> None:
        self._before = [(norm.momentum, norm.num_batches_tracked) for norm in self._norms]
        for norm in self._norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *error: object) -> None:
        for norm, (momentum, count) in zip(self._norms, self._before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
