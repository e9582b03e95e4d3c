"""Compares the rates of kinds of samples and shapes of batches with other loaders that do the same work.

`python sample_rates.py PHOTOS --rounds 5 --json FILE`: images per second in alternating rounds, with two workers or
threads each: one random crop of each image (with --gpu on the GPU), bilinear and bicubic; eight views of each image;
the user's own transform in numpy; a mask with each image (PNG, made from the photos); an image target (the photos
again); a caption in tars, as 77 token numbers; batches in aspect buckets compared with batches of one size. The others
are torch's DataLoader with Pillow, DALI and WebDataset if they are installed, and FFCV of another interpreter: `--ffcv
PYTHON`. samples_by_dali.py and samples_by_ffcv.py describe how they do it, OUT_OF_REACH what they cannot do.
"""

from __future__ import annotations

import importlib.util
import io
import os
import random
import shutil
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from sample_kinds import BATCH, SIZE, VIEWS, WORKERS, count_rate, shift_colors, tokenize
from samples_by_dali import check_masks, make_dali
from torch.utils.data import DataLoader, Dataset

from penstock.bench.record.environment import describe_environment
from penstock.bench.run.pillow_loader import PillowDataset
from penstock.loaders import ImageTargets, create_loader, open_source, with_fields
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

PIPELINES = [imagenet_train(size, scale=share) for size, share in VIEWS]
SETTLE_S = 1.5
KINDS = {
    "photo": "photo",
    "bicubic": "bicubic",
    "eight views": "views",
    "own transform": "transform",
    "mask": "mask",
    "image target": "target",
    "caption": "caption",
}
OUT_OF_REACH = {
    "bicubic": {"FFCV": "it resizes by OpenCV's INTER_AREA"},
    "image target": {"FFCV": "as for masks"},
    "caption": {"DALI": "text is not an output that an iterator of batches returns", "FFCV": "it has no text"},
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

    others: files of masks or targets, in the photos' order. kind: a value of KINDS.
    """

    def __init__(self, photos: Sequence[Path], others: Sequence[Path], kind: str) -> None:
        self._photos, self._others, self._kind = photos, others, kind
        views = PIPELINES if kind == "views" else [imagenet_train(SIZE)]
        self._draws = [PillowDataset(open_source(photos[0].parent), view, torch.uint8) for view in views]

    def __len__(self) -> int:
        return len(self._photos)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self._photos[index]).convert("RGB")
        other = Image.open(self._others[index]) if self._others else None
        found = self.crops(image, other.convert("RGB") if other and self._kind == "target" else other)
        if self._kind == "transform":
            found = [shift_colors(found[0], np.random.default_rng(int(torch.randint(1 << 31, ()))))]
        if self._kind == "caption":
            found.append(tokenize(caption(self._photos[index])))
        return [torch.from_numpy(each) for each in found]

    def crops(self, image: Any, other: Any = None) -> list[Any]:
        """Return each view of an image, and the same window of its mask or target."""
        filter_ = Image.Resampling.BICUBIC if self._kind == "bicubic" else Image.Resampling.BILINEAR
        of_other = Image.Resampling.NEAREST if self._kind == "mask" else filter_
        found: list[Any] = []
        for draw in self._draws:
            x, y, w, h = draw._window(*image.size)
            height, width = draw._pipeline.size
            box, flip = (x, y, x + w, y + h), torch.rand(1).item() < 0.5
            for part, how in ((image, filter_), (other, of_other)):
                if part is not None:
                    made = part.crop(box).resize((width, height), how)
                    made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else made
                    found.append(np.array(made))
        return found


def pairs_of_tar(tars: Sequence[Path], samples: PillowSamples) -> Any:
    """Return WebDataset's loader of images and tokens, as its documentation builds it."""
    import webdataset

    data = webdataset.WebDataset(list(map(str, tars)), shardshuffle=len(tars), empty_check=False).shuffle(100)
    pairs = data.decode("pilrgb").to_tuple("jpg", "txt").map_tuple(lambda image: samples.crops(image)[0], tokenize)
    return webdataset.WebLoader(pairs.batched(BATCH, partial=False), batch_size=None, num_workers=WORKERS)


def caption(photo: Path) -> str:
    """Return 8 to 20 words, the same ones for the same photo."""
    words = random.Random(photo.stem)
    return " ".join(words.choices(("photo", "of", "a", "red", "house", "with", "two", "birds"), k=words.randint(8, 20)))


def make_tars(photos: Sequence[Path], folder: Path, number: int = 4) -> list[Path]:
    """Write the photos with their captions into each tar."""
    tars = [folder / f"{tar:04d}.tar" for tar in range(number)]
    for path in tars:
        with tarfile.open(path, "w") as tar:
            for photo in photos:
                tar.add(photo, f"{photo.stem}.jpg")
                text = caption(photo).encode()
                member = tarfile.TarInfo(f"{photo.stem}.txt")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    return tars


def make_masks(photos: Sequence[Path], folder: Path) -> Path:
    """Write a mask of 21 classes in blobs for each photo, with the size of the photo."""
    for path in photos:
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


def cases(photos: Path, made: Path, ffcv: Path | None, *, on_gpu: bool = False) -> dict[str, dict[str, Any]]:
    """Return, for each case, factories of the compared loaders; Penstock's comes first.

    made: an empty folder for masks, targets and tars.
    """
    files = sorted(photos.iterdir())
    masks, targets, in_tars = (made / name for name in ("masks", "targets", "tars"))
    for folder in (masks, targets, in_tars):
        folder.mkdir()
    make_masks(files, masks)
    for path in files:
        shutil.copy(path, targets)
    others = {"mask": [masks / f"{path.stem}.png" for path in files], "target": [targets / path.name for path in files]}
    tars = make_tars(files, in_tars)

    def ours(source: Any = photos, **settings: Any) -> Any:
        usual = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "dtype": torch.uint8, "workers": WORKERS}
        return Here(partial(create_loader, source, **{**usual, **settings}))

    def by_torch(kind: str) -> Any:
        settings: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True}
        dataset = PillowSamples(files, others.get(kind, []), kind)
        return Here(partial(DataLoader, dataset, BATCH, shuffle=True, drop_last=True, **settings))

    def by_dali(kind: str) -> Any:
        loader = make_dali(kind, files, others.get(kind, []), on_gpu=on_gpu and kind == "photo")
        if kind in others:
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
        "bicubic": {
            "Penstock": partial(ours, pipeline=imagenet_train(SIZE, interpolation="bicubic")),
            "Penstock, bilinear": ours,
        },
        "eight views": {"Penstock": partial(ours, pipeline=PIPELINES)},
        "own transform": {"Penstock": partial(ours, transform=shift_colors, dtype=torch.float32)},
        "mask": {"Penstock": lambda: ours(with_fields(photos, mask=masks))},
        "image target": {"Penstock": lambda: ours(with_fields(photos, target=ImageTargets(targets)))},
        "caption": {
            "Penstock": partial(ours, list(map(str, tars)), text="txt", tokenize=tokenize),
            "WebDataset": lambda: Here(partial(pairs_of_tar, tars, PillowSamples(files, [], "photo"))),
        },
        "aspect buckets": {"Penstock": partial(ours, many, buckets=buckets), "one size": partial(ours, many)},
    }
    if not importlib.util.find_spec("webdataset"):
        del found["caption"]["WebDataset"]
    has_dali = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali")
    for name, kind in KINDS.items():
        unable = OUT_OF_REACH.get(name, {})
        found[name]["torch + Pillow"] = partial(by_torch, kind)
        if has_dali and "DALI" not in unable:
            found[name]["DALI"] = partial(by_dali, kind)
        if ffcv is not None and "FFCV" not in unable:
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
        for name, makers in cases(photos.resolve(), Path(folder), ffcv, on_gpu=gpu).items():
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
