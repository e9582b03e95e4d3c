"""FFCV's loader for kinds of samples, run by an interpreter that has ffcv: `python samples_by_ffcv.py PHOTOS KIND`.

For each line of the standard input (settling and counted seconds) it prints images per second. The images are written
once in FFCV's format, whole and re-encoded as JPEG. Views: one pipeline per view, which decodes the image again. Own
transform: a module that calls the function for one image at a time, after FFCV's compiled part. There is no mask:
FFCV's crops and flips draw separately for each field, and its only resize averages pixels, so that classes mix.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline import PipelineSpec
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image
from sample_kinds import BATCH, SIZE, VIEWS, WHOLE, WORKERS, count_rate, shift_colors


class Photos:
    """Pairs of image and number, as FFCV stores them."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.open(self._paths[index]).convert("RGB"), index


class Shifted(torch.nn.Module):
    """Calls the user's function for each image of a batch, uint8 [batch, height, width, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = np.random.default_rng(0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.stack([shift_colors(image, self._generator) for image in images.numpy()]))


def make_loader(kind: str, photos: Path, written: Path) -> Any:
    """Return FFCV's loader: epochs of tuples of tensors."""
    fields = {"image": RGBImageField(write_mode="jpg"), "number": IntField()}
    DatasetWriter(str(written), fields, num_workers=WORKERS).from_indexed_dataset(Photos(photos))
    last = [Shifted()] if kind == "transform" else [ToTorchImage()]
    views = VIEWS if kind == "views" else [(SIZE, WHOLE)]
    pipelines: dict[str, Any] = {}
    for number, (size, share) in enumerate(views):
        crop = RandomResizedCropRGBImageDecoder((size, size), scale=share)
        pipelines[f"view {number}"] = PipelineSpec("image", crop, [RandomHorizontalFlip(), ToTensor(), *last])
    pipelines |= {"number": [IntDecoder(), ToTensor(), Squeeze()], "image": None}
    settings = {"num_workers": WORKERS, "order": OrderOption.RANDOM, "os_cache": True, "drop_last": True}
    return Loader(str(written), batch_size=BATCH, pipelines=pipelines, **settings)


def endless(loader: Any) -> Iterator[Any]:
    """Serve the loader's epochs endlessly."""
    while True:
        yield from loader


def main() -> None:
    """Answer lines of the standard input until it ends."""
    with tempfile.TemporaryDirectory() as folder:
        batches = endless(make_loader(sys.argv[2], Path(sys.argv[1]), Path(folder, "photos.beton")))
        next(batches)  # compiles
        print("ready", flush=True)
        for line in sys.stdin:
            print(count_rate(batches, *map(float, line.split())), flush=True)


if __name__ == "__main__":
    main()
