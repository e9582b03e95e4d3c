"""The batch stage of patches: the levels of each patch are normalised as those of an image."""

from __future__ import annotations

import torch

from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import AugmentPlan


class PatchStage(BatchStage):
    """Turn patches [batch, length, levels] into model input of the same shape; it augments nothing."""

    def __call__(
        self, images: torch.Tensor, out: torch.Tensor | None = None, plan: AugmentPlan | None = None
    ) -> torch.Tensor:
        """Return the patches in this stage's dtype; `images` and `out` as BatchStage takes them."""
        levels = images.view(*images.shape[:2], -1, len(self._scale))
        return self._normalise(levels, None if out is None else out.view(levels.shape)).flatten(2)
