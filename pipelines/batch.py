"""The batch stage: uint8 pixels on a device -> normalised floats, channels_last."""

from __future__ import annotations

import torch

from penstock.pipelines.spec import ImagePipeline

_PARALLEL_GRAIN = 32768  # at::internal::GRAIN_SIZE: elementwise operations on up to so many elements stay on one thread
DTYPES = (torch.uint8, torch.float32, torch.float16, torch.bfloat16)


class BatchStage:
    """Turns uint8 NHWC batches into what the model takes, on the batch's device.

    dtype: torch.uint8 hands out the raw pixels (no copy); float32, float16, bfloat16 are `(pixel / 255 - mean) / std`,
    computed in float32. Raises ValueError for another dtype.
    """

    def __init__(self, pipeline: ImagePipeline, dtype: torch.dtype, device: torch.device) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(str(d) for d in DTYPES)}, not {dtype}")
        self.dtype, self.device = dtype, device
        std, mean = torch.tensor(pipeline.std), torch.tensor(pipeline.mean)
        self._scale = (1 / (255 * std)).to(device)
        self._shift = (-mean / std).to(device)
        # One image row of either constant, so that the CPU pass runs over long contiguous rows, not over three
        # channels.
        width = pipeline.size[1]
        self._row_scale, self._row_shift = self._scale.repeat(width), self._shift.repeat(width)

    def __call__(self, images: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """uint8 [batch, height, width, 3] -> [batch, 3, height, width], channels_last strides, of this stage's dtype.

        With dtype uint8 the result shares memory with `images`. `out`, contiguous [batch, height, width, 3] of this
        stage's dtype, is memory to use for the result on a CPU.
        """
        if self.dtype == torch.uint8:
            return images.permute(0, 3, 1, 2)
        if images.device.type == "cpu":
            return self._on_cpu(images, out).permute(0, 3, 1, 2)
        # three short kernels on a device; memory traffic is a few percent of a training step's
        floats = torch.addcmul(self._shift, images.to(torch.float32), self._scale)
        return floats.to(self.dtype).permute(0, 3, 1, 2)

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
