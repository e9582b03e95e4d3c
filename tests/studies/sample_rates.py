"""Measures kinds of samples and shapes of batches next to torch's DataLoader with Pillow, which does the same work.

`python sample_rates.py PHOTOS --rounds 5 --json FILE`: images per second, the rounds alternating, of two workers each:
eight views of each image; the user's own transform in numpy; a mask next to each image; batches in aspect buckets next
to batches of one size. The masks are made from the photos, as PNG.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from penstock.bench.measure.environment import describe_environment
from penstock.bench.run.pillow_loader import PillowDataset
from penstock.loaders import create_loader, open_source, with_fields
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

BATCH, WORKERS = 64, 2
VIEWS = [imagenet_train(224, scale=(0.4, 1))] * 2 + [imagenet_train(96, scale=(0.05, 0.4))] * 6
SIZE = 224


def shift_colors(image: np.ndarray[Any, Any], generator: np.random.Generator) -> torch.Tensor:
    """Return floats [3, height, width] with random gain and offset of each channel: a usual transform in numpy."""
    pixels = image.astype(np.float32) * generator.uniform(0.8, 1.2, 3).astype(np.float32)
    pixels += generator.uniform(-20, 20, 3).astype(np.float32)
    return torch.from_numpy(np.ascontiguousarray(np.clip(pixels, 0, 255).transpose(2, 0, 1)))


class PillowSamples(Dataset[Any]):
    """Makes the same samples with Pillow, as people write it for torch's DataLoader.

    kind: "views", "transform" or "mask".
    """

    def __init__(self, photos: Path, masks: Path, kind: str) -> None:
        self._source = open_source(photos)
        self._masks, self._kind = masks, kind
        views = VIEWS if kind == "views" else [imagenet_train(SIZE)]
        self._draws = [PillowDataset(self._source, view, torch.uint8) for view in views]

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        path = self._source.path(index).decode()
        image = Image.open(path).convert("RGB")
        mask = Image.open(self._masks / f"{Path(path).stem}.png") if self._kind == "mask" else None
        found: list[Any] = []
        for draw in self._draws:
            x, y, w, h = draw._window(*image.size)
            height, width = draw._pipeline.size
            box, flip = (x, y, x + w, y + h), torch.rand(1).item() < 0.5
            for part, how in ((image, Image.Resampling.BILINEAR), (mask, Image.Resampling.NEAREST)):
                if part is not None:
                    made = part.crop(box).resize((width, height), how)
                    made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else made
                    found.append(np.array(made))
        if self._kind == "transform":
            return shift_colors(found[0], np.random.default_rng(int(torch.randint(1 << 31, ()))))
        return [torch.from_numpy(each) for each in found]


def make_masks(photos: Path, folder: Path) -> Path:
    """Write a mask of 21 classes in blobs for each photo, as large as that."""
    for path in sorted(photos.iterdir()):
        with Image.open(path) as image:
            small = np.asarray(image.convert("L").resize((24, 24))) // 13
            mask = Image.fromarray(small.astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
        mask.save(folder / f"{path.stem}.png")
    return folder


def endless(make: Callable[[], Any]) -> Iterator[Any]:
    """Serve a loader's epochs without end."""
    loader = make()
    while True:
        yield from loader


def count(batch: Any) -> int:
    """Return the number of images in a batch; of several views an image counts once."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)


def measure(batches: Iterator[Any], seconds: float) -> float:
    """Return images per second."""
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        done += count(next(batches))
    return done / (time.perf_counter() - started)


def cases(photos: Path, masks: Path) -> dict[str, dict[str, Callable[[], Iterable[Any]]]]:
    """Return, for each case, what makes the loaders that are compared."""

    def ours(source: Any = photos, **settings: Any) -> Any:
        usual = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "dtype": torch.uint8, "workers": WORKERS}
        return create_loader(source, **{**usual, **settings})

    def theirs(kind: str) -> Any:
        settings: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
        return DataLoader(PillowSamples(photos, masks, kind), BATCH, shuffle=True, drop_last=True, **settings)

    buckets = [(224, 224), (192, 256), (256, 192)]
    many = [photos] * 8  # so that each bucket fills batches
    return {
        "eight views": {"penstock": partial(ours, pipeline=VIEWS), "torch + Pillow": partial(theirs, "views")},
        "own transform": {
            "penstock": partial(ours, transform=shift_colors, dtype=torch.float32),
            "torch + Pillow": partial(theirs, "transform"),
        },
        "mask": {
            "penstock": lambda: ours(with_fields(photos, mask=masks)),
            "torch + Pillow": partial(theirs, "mask"),
        },
        "aspect buckets": {"buckets": partial(ours, many, buckets=buckets), "one size": partial(ours, many)},
    }


def main(
    photos: Annotated[Path, typer.Argument(help="A folder of photos.")],
    rounds: Annotated[int, typer.Option(help="Rounds of each loader.")] = 5,
    seconds: Annotated[float, typer.Option(help="Seconds of a round.")] = 6,
    only: Annotated[list[str] | None, typer.Option(help="Cases to measure.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the record.")] = None,
) -> None:
    """Measure the cases, and print medians and ratios."""
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, loaders in cases(photos.resolve(), make_masks(photos, Path(folder))).items():
            if only and name not in only:
                continue
            batches = {who: endless(make) for who, make in loaders.items()}
            for each in batches.values():
                measure(each, 2)
            rates = found[name] = {who: [] for who in batches}
            for _ in range(rounds):
                for who, each in batches.items():
                    rates[who].append(measure(each, seconds))
            first, second = (statistics.median(each) for each in rates.values())
            ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
            print(f"{name}: {' / '.join(rates)} = {first:.0f} / {second:.0f}, {statistics.median(ratios):.2f} times")
            print(f"    ratios of the rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)}", flush=True)
            for each in batches.values():
                each.close()  # type: ignore[attr-defined]
    if json_file is not None:
        about = {"environment": describe_environment(), "batch_size": BATCH, "workers": WORKERS, "seconds": seconds}
        write_json(json_file, {**about, "images_per_s": found})


if __name__ == "__main__":
    typer.run(main)
