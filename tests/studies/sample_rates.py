"""Compares the rates of kinds of samples and shapes of batches with other loaders that do the same work.

`python sample_rates.py PHOTOS --rounds 5 --json FILE`: images per second in alternating rounds, with two workers or
threads each: one random crop of each image (with --gpu on the GPU); eight views of each image; the user's own transform
in numpy; a mask with each image (PNG, made from the photos); batches in aspect buckets compared with batches of one
size. The others are torch's DataLoader with Pillow, DALI if it is installed, and FFCV of another interpreter: `--ffcv
PYTHON`. samples_by_dali.py and samples_by_ffcv.py describe how they do it, OUT_OF_REACH what they cannot do.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from sample_kinds import BATCH, SIZE, VIEWS, WORKERS, count_rate, shift_colors
from samples_by_dali import check_masks, make_dali
from torch.utils.data import DataLoader, Dataset

from penstock.bench.record.environment import describe_environment
from penstock.bench.run.pillow_loader import PillowDataset
from penstock.loaders import create_loader, open_source, with_fields
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

PIPELINES = [imagenet_train(size, scale=share) for size, share in VIEWS]
SETTLE_S = 1.5
KINDS = {"photo": "photo", "eight views": "views", "own transform": "transform", "mask": "mask"}
OUT_OF_REACH = {
    "mask": {
        "FFCV": "random crops and flips draw for each field on their own, and the resize averages pixels, so that "
        "classes mix: a mask cannot follow its image"
    },
    "aspect buckets": {
        "DALI": "a pipeline makes batches of one shape, and has no order by aspect",
        "FFCV": "a loader makes batches of one shape, and has no order by aspect",
        "torch + Pillow": "DataLoader has no order by aspect; users write a batch sampler of their own",
    },
}


class PillowSamples(Dataset[Any]):
    """Makes the same samples with Pillow, as users write it for torch's DataLoader.

    kind: "photo", "views", "transform" or "mask".
    """

    def __init__(self, photos: Path, masks: Path, kind: str) -> None:
        self._source = open_source(photos)
        self._masks, self._kind = masks, kind
        views = PIPELINES if kind == "views" else [imagenet_train(SIZE)]
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
            found = [shift_colors(found[0], np.random.default_rng(int(torch.randint(1 << 31, ()))))]
        return [torch.from_numpy(each) for each in found]


def make_masks(photos: Path, folder: Path) -> Path:
    """Write a mask of 21 classes in blobs for each photo, with the size of the photo."""
    for path in sorted(photos.iterdir()):
        with Image.open(path) as image:
            small = np.asarray(image.convert("L").resize((24, 24))) // 13
            mask = Image.fromarray(small.astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
        mask.save(folder / f"{path.stem}.png")
    return folder


class Here:
    """Measures a loader of this process."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._batches = self._serve(make)
        count_rate(self._batches, SETTLE_S, 0.5)

    def rate(self, seconds: float) -> float:
        """Return images per second."""
        return count_rate(self._batches, SETTLE_S, seconds)

    def close(self) -> None:
        """Release the loader."""
        self._batches.close()  # type: ignore[attr-defined]

    @staticmethod
    def _serve(make: Callable[[], Any]) -> Iterator[Any]:
        loader = make()
        while True:
            yield from loader


class Ffcv:
    """Measures FFCV in a separate process of its own interpreter."""

    def __init__(self, python: Path, photos: Path, kind: str) -> None:
        script = Path(__file__).with_name("samples_by_ffcv.py")
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [str(python), str(script), str(photos), kind], stdin=pipe, stdout=pipe, text=True, env=own
        )
        while self._answer() != "ready":  # it prints the progress of writing its file
            pass
        self.rate(0.5)

    def rate(self, seconds: float) -> float:
        """Return images per second."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{SETTLE_S} {seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"FFCV ended with {self._process.wait()}: its error is above")
        return line.strip()


def cases(
    photos: Path, masks: Path, ffcv: Path | None, *, on_gpu: bool = False
) -> dict[str, dict[str, Callable[[], Any]]]:
    """Return, for each case, factories of the compared loaders; Penstock's comes first."""

    def ours(source: Any = photos, **settings: Any) -> Any:
        usual = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "dtype": torch.uint8, "workers": WORKERS}
        return Here(partial(create_loader, source, **{**usual, **settings}))

    def by_torch(kind: str) -> Any:
        settings: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
        dataset = PillowSamples(photos, masks, kind)
        return Here(partial(DataLoader, dataset, BATCH, shuffle=True, drop_last=True, **settings))

    def by_dali(kind: str) -> Any:
        files = sorted(photos.iterdir())
        matching = [masks / f"{path.stem}.png" for path in files]
        loader = make_dali(kind, files, matching, on_gpu=on_gpu and kind == "photo")
        if kind == "mask":
            check_masks(next(iter(loader))[0])
        return Here(lambda: loader)

    device = "cuda" if on_gpu else "cpu"
    buckets = [(224, 224), (192, 256), (256, 192)]
    many = [photos] * 8  # so that each bucket fills batches
    found: dict[str, dict[str, Callable[[], Any]]] = {
        "photo": {
            "Penstock": partial(ours, device=device),
            "Penstock, dali backend": partial(ours, backend="dali", device=device),
        },
        "eight views": {"Penstock": partial(ours, pipeline=PIPELINES)},
        "own transform": {"Penstock": partial(ours, transform=shift_colors, dtype=torch.float32)},
        "mask": {"Penstock": lambda: ours(with_fields(photos, mask=masks))},
        "aspect buckets": {"Penstock": partial(ours, many, buckets=buckets), "one size": partial(ours, many)},
    }
    for name, kind in KINDS.items():
        found[name]["torch + Pillow"] = partial(by_torch, kind)
        if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
            found[name]["DALI"] = partial(by_dali, kind)
        if ffcv is not None and "FFCV" not in OUT_OF_REACH.get(name, {}):
            found[name]["FFCV"] = partial(Ffcv, ffcv, photos, kind)
    return found


def main(
    photos: Annotated[Path, typer.Argument(help="A folder of photos.")],
    rounds: Annotated[int, typer.Option(help="Rounds of each loader.")] = 5,
    seconds: Annotated[float, typer.Option(help="Seconds of a round.")] = 4,
    only: Annotated[list[str] | None, typer.Option(help="Cases to measure.")] = None,
    ffcv: Annotated[Path | None, typer.Option(help="A Python that has ffcv.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Measure the case photo on the GPU.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write the record.")] = None,
) -> None:
    """Measure the cases, and print medians and ratios."""
    found: dict[str, dict[str, list[float]]] = {}
    load: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, makers in cases(photos.resolve(), make_masks(photos, Path(folder)), ffcv, on_gpu=gpu).items():
            if only and name not in only:
                continue
            loaders = {who: make() for who, make in makers.items()}
            rates = found[name] = {who: [] for who in loaders}
            for _ in range(rounds):
                for who, loader in loaders.items():
                    rates[who].append(loader.rate(seconds))
            load[name] = os.getloadavg()[0]
            ours, *_ = rates.values()
            for who, each in rates.items():
                ratios = [a / b for a, b in zip(ours, each, strict=True)]
                spread = f"{statistics.median(ratios):.2f} times, {min(ratios):.2f} to {max(ratios):.2f}"
                print(f"{name}: {who} {statistics.median(each):,.0f} images/s; Penstock {spread}", flush=True)
            for loader in loaders.values():
                loader.close()
    if json_file is not None:
        about = {"environment": describe_environment(), "batch_size": BATCH, "workers": WORKERS, "seconds": seconds}
        write_json(json_file, {**about, "load": load, "images_per_s": found, "out_of_reach": OUT_OF_REACH})


if __name__ == "__main__":
    typer.run(main)
