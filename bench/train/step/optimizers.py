"""Makes optimisers by name, with weight decay for matrices and filters only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from penstock.bench.train.step.models import import_timm
from penstock.bench.train.step.technique_settings import OptimizerSettings


def make_optimizer(model: nn.Module, settings: OptimizerSettings, *, lr: float | None = None) -> Optimizer:
    """Return the optimiser of the settings, with `lr` instead of `settings.lr` if given.

    Raises LoaderError E-DEPENDENCY for lars or lamb without timm.
    """
    lr = settings.lr if lr is None else lr
    betas = (settings.beta1, settings.beta2)
    if settings.optimizer == "sgd":
        return sgd(model, settings, lr=lr)
    groups = _groups(model, settings)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=settings.eps, **_kernel(settings))
    for group, adapts in zip(groups, (True, False), strict=True):
        group["always_adapt"] = adapts  # otherwise timm does not adapt matrices without decay
    timm: Any = import_timm("timm.optim", f"optimizer={settings.optimizer!r} is timm's", "sgd or adamw")
    if settings.optimizer == "lars":
        return timm.Lars(groups, lr=lr, momentum=settings.momentum, trust_coeff=settings.trust, eps=0.0)  # type: ignore[no-any-return]
    return timm.Lamb(groups, lr=lr, betas=betas, eps=settings.eps, max_grad_norm=None)  # type: ignore[no-any-return]


def sgd(model: nn.Module, settings: OptimizerSettings, *, lr: float) -> torch.optim.SGD:
    """Return SGD with Nesterov momentum and weight decay on matrices and filters only."""
    optimizer = torch.optim.SGD(
        _groups(model, settings), lr=lr, momentum=settings.momentum, nesterov=True, **_kernel(settings)
    )
    for p in _trained_parameters(model):
        # Fused SGD allocates its momentum uninitialised and does not fill it in a first step that overflows, which
        # fp16's first step usually does. Starting from zeros gives the same first step.
        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


def _kernel(settings: OptimizerSettings) -> dict[str, bool]:
    # With "fused", GradScaler leaves the overflow check to the kernel; otherwise it reads a flag in each step.
    return {"fused": True} if settings.kernel == "fused" else {"foreach": settings.kernel == "foreach"}


def _trained_parameters(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def _groups(model: nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """Return two parameter groups: matrices and filters with decay; norms and biases without."""
    parameters = _trained_parameters(model)
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
