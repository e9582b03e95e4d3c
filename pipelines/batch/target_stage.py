"""The batch stage of image targets: turns levels on a device into the tensors that are served."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from penstock.pipelines.fields.field_kinds import FieldKind, TargetRules


class TargetStage:
    """Turn targets [batch, height, width, channels] into [batch, channels, height, width], on their device.

    Levels keep their type; with `mean` and `std` they become `(level - mean) / std`, in float32. Patches, [batch,
    length, levels], keep their shape.
    """

    def __init__(self, rules: TargetRules, device: torch.device, memory_format: torch.memory_format) -> None:
        self._channels, self._memory_format = rules.channels, memory_format
        self._moments: tuple[torch.Tensor, torch.Tensor] | None = None
        if rules.std:
            mean, std = (torch.tensor(each, dtype=torch.float64, device="cpu") for each in (rules.mean, rules.std))
            scale, shift = (each.to(torch.float32).to(device) for each in (1 / std, -mean / std))
            self._moments = scale, shift

    def __call__(self, levels: torch.Tensor) -> torch.Tensor:
        """Return the targets of one view."""
        if self._moments is not None:
            scale, shift = self._moments
            pixels = levels.view(*levels.shape[:-1], levels.shape[-1] // self._channels, self._channels).to(
                torch.float32
            )
            levels = torch.addcmul(shift, pixels, scale).view(levels.shape)
        if levels.dim() < 4:
            return levels
        return levels.permute(0, 3, 1, 2).contiguous(memory_format=self._memory_format)


def target_stages(
    kinds: Mapping[str, FieldKind], device: torch.device, memory_format: torch.memory_format
) -> dict[str, TargetStage]:
    """Return the stage of each image target among the fields of a source, by name."""
    rules = {name: kind.target for name, kind in kinds.items()}
    return {name: TargetStage(each, device, memory_format) for name, each in rules.items() if each is not None}
