"""The batch stage: turns uint8 pixels on a device into augmented, normalised floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from penstock.pipelines.batch.augment import augment
from penstock.pipelines.batch.erase_and_mix import erase, make_soft_targets, mix, mix_targets
from penstock.pipelines.batch.fused_check import choose_fused_stage
from penstock.pipelines.plan.augmentations import AugmentPlan, BatchKey, plan_augmentations
from penstock.pipelines.spec import ImagePipeline

_PARALLEL_GRAIN = 32768  # at::internal::GRAIN_SIZE: torch runs elementwise operations up to this size in one thread
# Values of a job, uint8: few enough for the processor's second cache, where its images stay from one operation to the
# next, and enough that its operations take longer than their calls.
_JOB_VALUES, _LEAST_VALUES = 1 << 20, 1 << 16
MEMORY_FORMATS = (torch.channels_last, torch.contiguous_format)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
DTYPES = (
    torch.uint8,
    *_FLOATS,
)  # for depth=8; with depth=16 the first one is torch.uint16, with depth=32 there is none
_MOST_TABLES = 64
_RAW = {8: torch.uint8, 16: torch.uint16, 32: None}  # dtype of batches that are served unchanged


class BatchStage:
    """Turn batches [batch, height, width, channels] of levels into model input, on the batch's device.

    With the dtype of the levels, torch.uint8 (torch.uint16 with depth=16), levels are returned unchanged, without a
    copy; floats are `(level / 255 - mean) / std` (65535 for 16 bits), computed in float32. With depth=32 they are
    `(level - mean) / std`; mean 0 and std 1 serve the levels. A pipeline that augments needs the plan of each batch.
    Raises ValueError for other dtypes and memory formats, and for a pipeline that mixes without a float dtype or
    without `num_classes`.

    Attributes:
        dtype: dtype of the resulting images: the dtype of the levels, or a float of DTYPES.
        device: device of the batches.
        memory_format: memory format of the resulting images, one of MEMORY_FORMATS; channels_last needs no copy.
    """

    def __init__(
        self,
        pipeline: ImagePipeline,
        dtype: torch.dtype,
        device: torch.device,
        *,
        num_classes: int | None = None,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self._raw = _RAW[pipeline.depth]
        served = _FLOATS if self._raw is None else (self._raw, *_FLOATS)
        if dtype not in served:
            wanted = ", ".join(map(str, served))
            raise ValueError(f"dtype must be one of {wanted} with depth={pipeline.depth}, got {dtype!r}")
        if memory_format not in MEMORY_FORMATS:
            known = " or ".join(map(str, MEMORY_FORMATS))
            raise ValueError(f"memory_format must be {known}, got {memory_format!r}")
        self._augment, self._size, self._num_classes = pipeline.augment, pipeline.size, num_classes
        if self._augment.mixes and dtype == self._raw:
            raise ValueError("mixing needs a float dtype: mixup and cutmix work on normalised pixels")
        if self._augment.mixes and num_classes is None:
            raise ValueError("mixing needs num_classes, the width of the soft targets")
        self.dtype, self.device, self.memory_format = dtype, device, memory_format
        std, mean = (torch.tensor(each, dtype=torch.float32, device="cpu") for each in (pipeline.std, pipeline.mean))
        self._highest = highest = 1.0 if pipeline.depth == 32 else float(2**pipeline.depth - 1)
        scale, shift = 1 / (highest * std), -mean / std
        self._scale, self._shift = scale.to(device), shift.to(device)
        self._row_tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # The colour of an erased box: 0 after normalising.
        blank = (mean * highest).round().clamp(0, highest) if dtype == self._raw else torch.zeros_like(mean)
        blank = blank.to(dtype)
        self._blank = blank.to(device)
        # Operations that interpolate fill with the mean colour, as timm's do; only channels of colours have these.
        colour = mean[:1] if pipeline.keeps_channels else mean
        self._fill = tuple((colour * 255).round().clamp(0, 255).to(torch.int64).expand(3).tolist())
        # If an operation has no fused kernel, torch's kernels augment and the fused kernel normalises.
        self._fuses_plans = self._augment.active and not self._augment.unfused
        works = self._fuses_plans or dtype != self._raw
        can_fuse = works and pipeline.channels == 3 and pipeline.depth == 8
        self._fused = None
        if can_fuse:
            levels = _tabulate_results(scale, shift, blank)
            self._fused = choose_fused_stage(levels, device, augments=self._fuses_plans)

    @property
    def copies(self) -> bool:
        """Whether results never share memory with their input."""
        return self.dtype != self._raw

    @property
    def fused(self) -> bool:
        """Whether the whole stage runs as Triton kernels instead of torch's; the results are the same."""
        return self._fused is not None and (self._fuses_plans or not self._augment.active)

    @property
    def kernels(self) -> str:
        """Kernels that run the stage: "fused kernels" or "torch", with the settings that have no fused kernel."""
        without = "" if self.device.type == "cpu" else ", ".join(self._augment.unfused)
        return "fused kernels" if self.fused else f"torch (no fused kernel for {without})" if without else "torch"

    def plan(self, key: BatchKey) -> AugmentPlan | None:
        """Draw the augmentations of the batch `key`, for images of the pipeline's size; None if it has none."""
        if not self._augment.active:
            return None
        assert self._size is not None  # augmentations need images of one size
        return plan_augmentations(self._augment, self._size, key)

    def targets(self, labels: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        """Return labels unchanged, or mixed: int64 [batch] becomes soft targets, float32 [batch, num_classes]."""
        if plan is None or plan.mixing is None or self._num_classes is None:
            return labels
        if labels.is_floating_point():
            return mix_targets(labels, plan.mixing)
        return make_soft_targets(labels, plan.mixing, self._num_classes)

    def __call__(
        self, images: torch.Tensor, out: torch.Tensor | None = None, plan: AugmentPlan | None = None
    ) -> torch.Tensor:
        """Return the images as [batch, channels, height, width], in this stage's dtype and memory format.

        images: levels [batch, height, width, channels]; a channels_last result of the same dtype shares their memory,
        unless it is augmented. out: CPU memory for the result, contiguous, with the shape of `images` and this stage's
        dtype.
        plan: result of the method `plan` for this batch; a pipeline that augments raises ValueError without it.

        Float images that require gradients (float64 for gradcheck) get them through normalising, erasing and mixing.
        The earlier operations work on integer levels, as Pillow's do: they have no gradient, and raise ValueError for
        floats.
        """
        return self.arrange(self._run(images, out, plan))

    def split(
        self, images: torch.Tensor, out: torch.Tensor, plan: AugmentPlan, workers: int
    ) -> list[Callable[[], None]]:
        """Return independent jobs that together do the work of a call on a CPU, except for the last step, `arrange`.

        Each job writes a part of the batch into `out`: contiguous, with the shape of `images` and this stage's dtype.
        workers: number of threads that do the jobs; a batch is not cut into smaller parts than they need.
        """
        values = max(1, math.prod(images.shape[1:]))
        step = max(_LEAST_VALUES // values, min(_JOB_VALUES // values, -(-len(images) // workers)))
        step = max(2, step + step % 2)  # mixed pairs stay together
        starts = range(0, len(images), step)
        return [partial(self._run_part, images, out, plan, begin, min(begin + step, len(images))) for begin in starts]

    def _run_part(self, images: torch.Tensor, out: torch.Tensor, plan: AugmentPlan, begin: int, end: int) -> None:
        rows = slice(begin, end)
        result = self._run(images[rows], out[rows] if self.copies else None, plan.part(begin, end))
        if not self.copies:
            out[rows].copy_(result)

    def arrange(self, result: torch.Tensor) -> torch.Tensor:
        """Return images [batch, height, width, channels] as [batch, channels, height, width], in the memory format."""
        return result.permute(0, 3, 1, 2).contiguous(memory_format=self.memory_format)

    def levels(self, image: torch.Tensor) -> torch.Tensor:
        """Return a finished image [channels, height, width] as it was: uint8 [height, width, channels], on the host.

        With depth=16 the upper 8 bits; with depth=32 the values are stretched between their limits. Images of another
        shape, from a user's batch_transform, are as in PlainStage.
        """
        if image.ndim != 3 or len(self._scale) not in (1, len(image)):
            return _guess_levels(image)
        return self._restore(image.movedim(0, -1))

    def _restore(self, image: torch.Tensor) -> torch.Tensor:
        """Undo normalising; channels are last."""
        pixels = image.detach().to("cpu", torch.float32)
        if image.dtype != self._raw:
            pixels = (pixels - self._shift.cpu()) / self._scale.cpu()
        if self._raw is None:
            return _stretch(pixels)
        return (pixels * (255 / self._highest)).round().clamp(0, 255).to(torch.uint8)

    def _run(self, images: torch.Tensor, out: torch.Tensor | None, plan: AugmentPlan | None) -> torch.Tensor:
        """Augment, normalise and mix; return the images as [batch, height, width, channels]."""
        if plan is None:
            if self._augment.active:
                raise ValueError("this pipeline augments: the batch stage needs the plan of the batch")
            return self._normalise(images, out)
        if len(plan.ops) and images.dtype != torch.uint8:
            raise ValueError(f"images must be uint8 for operations on pixels, got {images.dtype}: there is no gradient")
        if self._fused is not None and self._fuses_plans and images.dtype == torch.uint8:
            return self._fused(images, plan, out)
        pixels = self._augment_pixels(images, plan) if len(plan.ops) else images
        result = self._normalise(pixels, out)
        if plan.erased.any():
            result = result.clone() if result is images else result  # the caller's images are not erased
            erase(_movable(result), plan.erased, _movable(self._blank))
        if plan.mixing is not None:
            mix(result, plan.mixing)
        return result

    def _augment_pixels(self, images: torch.Tensor, plan: AugmentPlan) -> torch.Tensor:
        """Apply the operations of `plan` to three channels at a time.

        One channel is processed as three, which stay equal in every operation. For other channels, the pipeline only
        allows operations that treat each channel alone.
        """
        count = images.shape[3]
        if count == 3:
            return augment(images, plan, self._fill)
        parts = [images[..., first : first + 3] for first in range(0, count, 3)]
        parts[-1] = torch.cat((parts[-1], parts[-1][..., -1:].expand(-1, -1, -1, 3 - parts[-1].shape[3])), 3)
        return torch.cat([augment(part.contiguous(), plan, self._fill) for part in parts], 3)[..., :count].contiguous()

    def _normalise(self, images: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Normalise images and return them as [batch, height, width, channels] in this stage's dtype."""
        if self.dtype == self._raw:
            return images
        if images.device.type == "cpu" and not images.requires_grad and self._fused is None:
            return self._normalise_on_cpu(images, out)
        if images.requires_grad:
            levels = images.to(torch.promote_types(images.dtype, torch.float32))
            return torch.addcmul(self._shift, levels, self._scale).to(self.dtype)
        if self._fused is not None and images.dtype == torch.uint8:
            return self._fused.normalise(images, out)
        return self._normalise_on_device(images, out)

    def _normalise_on_device(self, images: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Normalise in one kernel, which reads bytes, computes in float32, and writes the stage's dtype.

        Levels of 16 bits need another kernel, since torch cannot compute with uint16.
        """
        images = images.to(torch.float32) if images.dtype == torch.uint16 else images
        result = torch.empty(images.shape, dtype=self.dtype, device=images.device) if out is None else out
        return torch.addcmul(self._shift, images, self._scale, out=result)

    def _normalise_on_cpu(self, images: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Normalise in one pass over the batch, a few rows at a time, so that intermediate results stay in the cache.

        A chunk is too small for torch's thread pool: waking threads would cost more than the work, and would take CPUs
        from the loader's workers.
        """
        batch, height, width, channels = images.shape
        rows = images.reshape(batch * height, width * channels)
        results = torch.empty_like(rows, dtype=self.dtype) if out is None else out.view(rows.shape)
        step = max(1, min(len(rows), _PARALLEL_GRAIN // rows.shape[1]))
        row_scale, row_shift = self._tables_of(width)
        scratch = None
        if self.dtype != torch.float32:
            scratch = torch.empty((step, rows.shape[1]), dtype=torch.float32, device="cpu")
        for chunk, result in zip(torch.split(rows, step), torch.split(results, step), strict=True):
            target = result if scratch is None else scratch[: len(chunk)]
            target.copy_(chunk)
            torch.addcmul(row_shift, target, row_scale, out=target)
            if scratch is not None:
                result.copy_(target)
        return results.view(images.shape)

    def _tables_of(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and shift for each value of an image row: the CPU pass runs over long contiguous rows."""
        if width not in self._row_tables:
            if len(self._row_tables) >= _MOST_TABLES:  # images of own sizes have many widths
                self._row_tables.clear()
            self._row_tables[width] = self._scale.repeat(width), self._shift.repeat(width)
        return self._row_tables[width]


class PatchStage(BatchStage):
    """Turn patches [batch, length, levels] into model input of the same shape, without augmentation."""

    def __call__(
        self, images: torch.Tensor, out: torch.Tensor | None = None, plan: AugmentPlan | None = None
    ) -> torch.Tensor:
        """Return the patches in this stage's dtype; `images` and `out` as for BatchStage."""
        levels = self._split_channels(images)
        return self._normalise(levels, None if out is None else out.view(levels.shape)).flatten(2)

    def levels(self, image: torch.Tensor) -> torch.Tensor:
        """Return the patches of an image [length, levels] as they were: uint8 [length, pixels, channels]."""
        return self._restore(self._split_channels(image))

    def _split_channels(self, patches: torch.Tensor) -> torch.Tensor:
        """Return patches [..., levels] as [..., pixels, channels]; without -1, which torch refuses for no patches."""
        channels = len(self._scale)
        return patches.view(*patches.shape[:-1], patches.shape[-1] // channels, channels)


class PlainStage:
    """Pass on batches of a user's own transform; floats become `dtype`. Called like BatchStage.

    Attributes:
        dtype: dtype of the results.
        device: device of the batches.
        copies: whether results never share memory with their input.
        kernels: kernels that run augmentations.
    """

    copies = False
    kernels = "torch"

    def __init__(self, made: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype if made.is_floating_point and dtype.is_floating_point else made
        self.device = device

    def targets(self, labels: torch.Tensor, plan: AugmentPlan | None) -> torch.Tensor:
        """Return the labels."""
        return labels

    def __call__(
        self, images: torch.Tensor, out: torch.Tensor | None = None, plan: AugmentPlan | None = None
    ) -> torch.Tensor:
        """Return the images, [batch, ...]."""
        return images.to(self.dtype)

    def levels(self, image: torch.Tensor) -> torch.Tensor:
        """Return the result for one image, of unknown scale, as uint8 with channels last, on the host.

        uint8 is unchanged, floats from 0 to 1 are level / 255, and others are stretched between their limits.
        """
        return _guess_levels(image)


def _guess_levels(image: torch.Tensor) -> torch.Tensor:
    pixels = image.detach().cpu()
    if pixels.ndim == 3 and pixels.shape[0] < min(5, pixels.shape[2]):
        pixels = pixels.movedim(0, -1)
    if pixels.dtype == torch.uint8:
        return pixels
    floats = pixels.to(torch.float32).nan_to_num(0.0)
    if pixels.is_floating_point() and floats.numel() and floats.min() >= 0 and floats.max() <= 1:
        return (floats * 255).round().to(torch.uint8)
    return _stretch(floats)


def _stretch(values: torch.Tensor) -> torch.Tensor:
    """Return floats as uint8, the lowest as 0 and the highest as 255."""
    values = values.nan_to_num(0.0)
    low, high = (float(each) for each in (values.min(), values.max())) if values.numel() else (0.0, 1.0)
    return ((values - low) / max(high - low, 1e-12) * 255).round().clamp(0, 255).to(torch.uint8)


def _movable(levels: torch.Tensor) -> torch.Tensor:
    """Return levels in a type that torch's operations support: uint16, which few do, as int16 with the same bits."""
    return levels.view(torch.int16) if levels.dtype == torch.uint16 else levels


def _tabulate_results(scale: torch.Tensor, shift: torch.Tensor, blank: torch.Tensor) -> torch.Tensor:
    """Tabulate the result for each level of a channel, and for an erased pixel: [3, 257], in the dtype of `blank`."""
    levels = torch.arange(256, dtype=torch.uint8, device="cpu")[:, None].repeat(1, 3)
    results = torch.empty((257, 3), dtype=blank.dtype, device="cpu")
    results[:256] = levels if blank.dtype == torch.uint8 else torch.addcmul(shift, levels, scale)
    results[256] = blank  # not torch.cat, which refuses float16 under torch.autocast
    return results.T.contiguous()
