"""Implements LARS and LAMB, optimisers for large batches with a learning rate for each layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer


class _LayerWise(Optimizer):
    """Updates all weights of a group that have gradients together; nothing waits for the device."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every weight that has a gradient."""
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._update(group, weights, [p.grad for p in weights])

    def _update(self, group: dict[str, Any], weights: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError

    def _states(self, weights: list[Tensor], name: str) -> list[Tensor]:
        for weight in weights:
            if name not in self.state[weight]:
                self.state[weight][name] = torch.zeros_like(weight)
        return [self.state[weight][name] for weight in weights]


class Lars(_LayerWise):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, arXiv:1708.03888, algorithm 1).

    For the weights w of a layer with gradient g: rate = trust * |w| / (|g| + weight_decay * |w|), then
    v = momentum * v + lr * rate * (g + weight_decay * w) and w = w - v. Groups with `adapt=False` have rate 1, as have
    layers with |w| or |g| of zero.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapt": True}
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any], weights: list[Tensor], grads: list[Tensor]) -> None:
        decay = group["weight_decay"]
        updates = torch._foreach_add(grads, weights, alpha=decay)
        if group["adapt"]:
            norms = zip(torch._foreach_norm(weights), torch._foreach_norm(grads), strict=True)
            rates = [_ratio(group["trust"] * w, g + decay * w, unless=g) for w, g in norms]
            torch._foreach_mul_(updates, rates)
        velocities = self._states(weights, "momentum_buffer")
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, updates, alpha=group["lr"])
        torch._foreach_sub_(weights, velocities)


class Lamb(_LayerWise):
    """Adam's direction with a learning rate for each layer (You et al. 2020, arXiv:1904.00962, algorithm 2).

    u = m' / (sqrt(v') + eps) + weight_decay * w, with Adam's bias-corrected moments m' and v', then
    w = w - lr * |w| / |u| * u. Groups with `adapt=False` take w - lr * u, as do layers with |w| or |u| of zero.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": True, "updates": 0}
        super().__init__(params, defaults)

    def _update(self, group: dict[str, Any], weights: list[Tensor], grads: list[Tensor]) -> None:
        group["updates"] += 1
        beta1, beta2 = group["betas"]
        means, squares = self._states(weights, "exp_avg"), self._states(weights, "exp_avg_sq")
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta2 ** group["updates"]) ** 0.5)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, 1 - beta1 ** group["updates"])
        torch._foreach_div_(updates, roots)
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["adapt"]:
            norms = zip(torch._foreach_norm(weights), torch._foreach_norm(updates), strict=True)
            torch._foreach_mul_(updates, [_ratio(w, u, unless=u) for w, u in norms])
        torch._foreach_add_(weights, updates, alpha=-group["lr"])


def _ratio(above: Tensor, below: Tensor, *, unless: Tensor) -> Tensor:
    """Return above / below on the device; 1 where `above` or `unless` is zero."""
    return torch.where((above > 0) & (unless > 0), above / below, torch.ones_like(above))
