"""The batch stage: uint8 pixels on a device -> augmented, normalised floats, channels_last."""

from __future__ import annotations

import torch

from penstock.pipelines.batch.augment import augment
from penstock.pipelines.batch.erase_and_mix import erase, mix, soft_targets
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, plan_augment
from penstock.pipelines.spec import ImagePipeline

_PARALLEL_GRAIN = 32768  # at::internal::GRAIN_SIZE: elementwise operations on up to so many elements stay on one thread
DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16, torch.float64)


class BatchStage:
    """Turns uint8 NHWC batches into what the model takes, on the batch's device.

    dtype: torch.uint8 hands out the raw pixels (no copy); floats are `(pixel / 255 - mean) / std`, computed in float32.
    A pipeline that augments needs a plan with each batch; one that mixes, a float dtype and num_classes. Raises
    ValueError for another dtype, or without these.
    """

    def __init__(
        self, pipeline: ImagePipeline, dtype: torch.dtype, device: torch.device, *, num_classes: int | None = None
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(str(d) for d in DTYPES)}, not {dtype}")
        self._augment, self._size, self._num_classes = pipeline.augment, pipeline.size, num_classes
        if self._augment.mixes and dtype == torch.uint8:
            raise ValueError("mixing needs a float dtype: mixup and cutmix work on normalised pixels")
        if self._augment.mixes and num_classes is None:
            raise ValueError("mixing needs num_classes, the width of the soft targets")
        self.dtype, self.device = dtype, device
        std, mean = torch.tensor(pipeline.std), torch.tensor(pipeline.mean)
        self._scale = (1 / (255 * std)).to(device)
        self._shift = (-mean / std).to(device)
        # One image row of either constant, so that the CPU pass runs over long contiguous rows, not over three
        # channels.
        width = pipeline.size[1]
        self._row_scale, self._row_shift = self._scale.repeat(width), self._shift.repeat(width)
        # what an erased box holds: nothing once normalised
        blank = (mean * 255).round().clamp(0, 255) if dtype == torch.uint8 else torch.zeros(3)
        self._blank = blank.to(dtype).to(device)

    def plan(self, key: BatchKey) -> AugmentPlan | None:
        """What the augmentations of the batch `key` are; None where the pipeline has none."""
        return plan_augment(self._augment, self._size, key) if self._augment.active else None

    def targets(self, labels: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        """int64 [batch] labels as they are, or with mixing float32 [batch, num_classes], rows of padding all zero."""
        if plan is None or plan.mixing is None or self._num_classes is None:
            return labels
        return soft_targets(labels, plan.mixing, self._num_classes)

    def __call__(
        self, images: torch.Tensor, out: torch.Tensor | None = None, plan: AugmentPlan | None = None
    ) -> torch.Tensor:
        """uint8 [batch, height, width, 3] -> [batch, 3, height, width], channels_last strides, of this stage's dtype.

        With dtype uint8 the result shares memory with `images`, unless it is augmented. `out`, contiguous [batch,
        height, width, 3] of this stage's dtype, is memory to use for the result on a CPU. plan: what `plan` returned.
        Raises ValueError without it if the pipeline augments.

        Levels that are floats and require gradients (float64 for gradcheck, with this stage's dtype) get them: through
        normalising, erasing and mixing. What is planned before these works on whole levels, as Pillow does: it has no
        gradient, and refuses floats with ValueError.
        """
        if plan is None:
            if self._augment.active:
                raise ValueError("this pipeline augments: the batch stage needs the plan of the batch")
            return self._normalised(images, out).permute(0, 3, 1, 2)
        if len(plan.ops) and images.dtype != torch.uint8:
            raise ValueError(f"operations on pixels need uint8 images, not {images.dtype}: they have no gradient")
        pixels = augment(images, plan) if len(plan.ops) else images
        result = self._normalised(pixels, out)
        if plan.erased.any():
            result = result.clone() if result is images else result  # which are the caller's
            erase(result, plan.erased, self._blank)
        if plan.mixing is not None:
            mix(result, plan.mixing)
        return result.permute(0, 3, 1, 2)

    def _normalised(self, images: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """[batch, height, width, 3] of this stage's dtype."""
        if self.dtype == torch.uint8:
            return images
        if images.device.type == "cpu" and not images.requires_grad:
            return self._on_cpu(images, out)
        # three short kernels on a device; memory traffic is a few percent of a training step's
        levels = images.to(torch.promote_types(images.dtype, torch.float32))
        return torch.addcmul(self._shift, levels, self._scale).to(self.dtype)

    def _on_cpu(self, images: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """One pass over the batch, a few rows at a time, so that every intermediate stays in the cache.

        A chunk is smaller than what torch hands to its thread pool: waking threads for it costs more than the work, and
        takes processors from the loader's workers.
        """
        batch, height, width, channels = images.shape
        rows = images.reshape(batch * height, width * channels)
        results = torch.empty_like(rows, dtype=self.dtype) if out is None else out.view(rows.shape)
        step = max(1, min(len(rows), _PARALLEL_GRAIN // rows.shape[1]))
        scratch = None if self.dtype == torch.float32 else torch.empty((step, rows.shape[1]), dtype=torch.float32)
        for chunk, result in zip(torch.split(rows, step), torch.split(results, step), strict=True):
            target = result if scratch is None else scratch[: len(chunk)]
            target.copy_(chunk)
            torch.addcmul(self._row_shift, target, self._row_scale, out=target)
            if scratch is not None:
                result.copy_(target)
        return results.view(images.shape)
