"""The batch stage of what the user's own transform made: it goes to the device as it is."""

from __future__ import annotations

import torch

from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey


class PlainStage:
    """Hand batches on; floats become `dtype`. It has the methods of BatchStage.

    Attributes:
        dtype: of the results.
        device: device of the batches.
        copies: whether results never share the memory of what they were made of.
        kernels: what runs augmentations.
    """

    copies = False
    kernels = "torch"

    def __init__(self, made: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype if made.is_floating_point and dtype.is_floating_point else made
        self.device = device

    def plan(self, key: BatchKey, size: tuple[int, int] | None = None) -> AugmentPlan | None:
        """Draw nothing."""
        return None

    def targets(self, labels: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        """Return the labels."""
        return labels

    def __call__(
        self, images: torch.Tensor, out: torch.Tensor | None = None, plan: AugmentPlan | None = None
    ) -> torch.Tensor:
        """Return the images, [batch, ...]."""
        return images.to(self.dtype)
