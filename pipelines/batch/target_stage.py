"""The batch stage of image targets: turns levels on a device into the tensors that are served."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from penstock.pipelines.fields.field_kinds import HIGHEST, FieldKind, TargetRules


class TargetStage:
    """Turn targets [batch, height, width, channels] into [batch, channels, height, width], on their device.

    Levels keep their type; with `mean` and `std` they become `(level - mean) / std`, in float32. Patches, [batch,
    length, levels], keep their shape. highest: the highest level, None for floats: no result is above that of this
    level, so that targets stay in their `range`.
    """

    def __init__(
        self,
        rules: TargetRules,
        device: torch.device,
        memory_format: torch.memory_format,
        highest: int | None = None,
    ) -> None:
        self._channels, self._memory_format = rules.channels, memory_format
        self._moments: tuple[torch.Tensor, torch.Tensor] | None = None
        if rules.std:
            mean, std = (torch.tensor(each, dtype=torch.float64, device="cpu") for each in (rules.mean, rules.std))
            scale, shift = (each.to(torch.float32) for each in (1 / std, -mean / std))
            if highest is not None:
                scale = _limit(scale, shift, highest, ((highest - mean) / std).to(torch.float32))
            self._moments = scale.to(device), shift.to(device)

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


def _limit(scale: torch.Tensor, shift: torch.Tensor, highest: int, most: torch.Tensor) -> torch.Tensor:
    """Return scales, at most a few units in the last place lower, with which the highest level becomes at most `most`.

    Some devices round the product before the sum, others do not.
    """
    while True:
        sums = shift + highest * scale, (shift.double() + highest * scale.double()).to(torch.float32)
        above = torch.maximum(*sums) > most
        if not above.any():
            return scale
        scale = torch.where(above, scale.nextafter(torch.zeros_like(scale)), scale)


def target_stages(
    kinds: Mapping[str, FieldKind], device: torch.device, memory_format: torch.memory_format
) -> dict[str, TargetStage]:
    """Return the stage of each image target among the fields of a source, by name."""
    return {
        name: TargetStage(kind.target, device, memory_format, HIGHEST.get(kind.dtype))
        for name, kind in kinds.items()
        if kind.target is not None
    }
