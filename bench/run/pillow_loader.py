"""The usual loader: torch DataLoader, Pillow, RandomResizedCrop, flip, collate."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.spec import ImagePipeline

BASELINE_NAME = "torch DataLoader + Pillow"


class PillowDataset(Dataset[tuple[torch.Tensor, int]]):
    """A map-style dataset as in tutorials, with torchvision's transforms written out.

    Items: image [3, height, width], uint8 or normalised float32, and its label.
    """

    def __init__(self, source: Source, pipeline: ImagePipeline, dtype: torch.dtype) -> None:
        self._source, self._pipeline, self._dtype = source, pipeline, dtype
        self._labels = source.labels(np.arange(len(source)))
        self._mean = torch.tensor(pipeline.mean).view(3, 1, 1)
        self._std = torch.tensor(pipeline.std).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        data = self._source.read(index)
        image = Image.fromarray(data) if isinstance(data, np.ndarray) else Image.open(io.BytesIO(data)).convert("RGB")
        x, y, w, h = self._window(*image.size)
        height, width = self._pipeline.output_size
        name: str = self._pipeline.interpolation
        if name == "random":
            name = "bicubic" if torch.rand(1).item() < 0.5 else "bilinear"
        image = image.crop((x, y, x + w, y + h)).resize((width, height), Image.Resampling[name.upper()])
        if torch.rand(1).item() < self._pipeline.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if self._dtype != torch.uint8:
            pixels = pixels.to(torch.float32).div_(255).sub_(self._mean).div_(self._std)
        return pixels, int(self._labels[index])

    def _window(self, width: int, height: int) -> tuple[int, int, int, int]:
        if self._pipeline.crop != "random_resized":
            return 0, 0, width, height
        low, high = (math.log(bound) for bound in self._pipeline.ratio)
        for _ in range(10):
            area = width * height * torch.empty(1).uniform_(*self._pipeline.scale).item()
            aspect = math.exp(torch.empty(1).uniform_(low, high).item())
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                x = int(torch.randint(0, width - w + 1, (1,)).item())
                y = int(torch.randint(0, height - h + 1, (1,)).item())
                return x, y, w, h
        w, h = min(width, round(height * self._pipeline.ratio[1])), min(height, round(width / self._pipeline.ratio[0]))
        return (width - w) // 2, (height - h) // 2, w, h


def baseline_loader(
    source: Source, pipeline: ImagePipeline, *, batch_size: int, workers: int, dtype: torch.dtype, pin_memory: bool
) -> DataLoader[tuple[torch.Tensor, int]]:
    """Return torch's DataLoader over PillowDataset: shuffled, persistent workers, otherwise torch's defaults."""
    return DataLoader(
        PillowDataset(source, pipeline, dtype),
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
        pin_memory=pin_memory,
    )


class OnDevice:
    """Iterates over a host loader and moves its batches to the device in the usual way."""

    def __init__(self, loader: Any, device: str) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Any:
        for batch in self._loader:
            yield tuple(part.to(self._device, non_blocking=True) for part in batch)


def end_workers(loader: Any) -> None:
    """End the workers that torch's DataLoader keeps between epochs."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def worker_pids(loader: Any) -> set[int]:
    """Return the process ids of the workers that torch's DataLoader keeps between epochs."""
    workers = getattr(getattr(loader, "_iterator", None), "_workers", ())
    return {worker.pid for worker in workers if worker.pid is not None}
