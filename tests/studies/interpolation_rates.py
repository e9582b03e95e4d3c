"""Compares the rates of the filters of the resize, alternating with torch + Pillow and the dali backend.

`python interpolation_rates.py PHOTOS --rounds 9 --json FILE`: RandomResizedCrop to 224 and flip. First the sample stage
alone, in processor time of one thread, which other load of the machine changes least; then (not with --rounds 0)
loaders, uint8 batches of 50, two workers.
"""

from __future__ import annotations

import random
import statistics
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from penstock.bench.record.environment import describe_environment
from penstock.bench.run.pillow_loader import baseline_loader
from penstock.loaders import create_loader, open_source
from penstock.loaders.make.layout import Slot, image_layout
from penstock.loaders.make.native_rows import native_rows, plan_images
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

BATCH, WORKERS, SIZE = 50, 2, 224
FILTERS = ("bilinear", "bicubic", "random", "lanczos", "box", "nearest")
CASES = [("torch", name) for name in FILTERS]
CASES += [("dali", name) for name in ("bilinear", "bicubic")]
CASES += [("torch + Pillow", name) for name in ("bilinear", "bicubic")]


def open_case(photos: Path, kind: str, name: Any) -> Any:
    """Return the loader of one case: a backend or the usual loader, and a filter."""
    pipeline = imagenet_train(SIZE, interpolation=name)
    if kind == "torch + Pillow":
        usual: dict[str, Any] = {"batch_size": BATCH, "workers": WORKERS, "dtype": torch.uint8, "pin_memory": False}
        return baseline_loader(open_source(photos), pipeline, **usual)
    return create_loader(
        photos, pipeline=pipeline, backend=kind, batch_size=BATCH, workers=WORKERS, dtype=torch.uint8, seed=1
    )


class Stage:
    """The sample stage of one filter: the native library reads, decodes and resizes photos in this thread."""

    def __init__(self, photos: Path, name: Any) -> None:
        self._pipeline, source = imagenet_train(SIZE, interpolation=name), open_source(photos)
        self._layout = image_layout((self._pipeline,), BATCH)
        memory = np.empty(self._layout.num_bytes, np.uint8)
        self._slot = Slot(self._layout, memory, np.zeros(BATCH, BATCH_ROW))
        rows = native_rows(source, self._pipeline, "native")
        assert rows is not None
        self._rows, self._images = rows, len(source) // BATCH * BATCH

    def measure(self, epoch: int) -> float:
        """Return microseconds of processor time per image over one epoch."""
        started = time.thread_time()
        for first in range(0, self._images, BATCH):
            plan = plan_images((self._pipeline,), 1, epoch, self._layout)
            self._rows.fill(np.arange(first, first + BATCH), np.arange(BATCH), plan, self._slot)
        return (time.thread_time() - started) / self._images * 1e6


def measure_stages(photos: Path, rounds: int) -> dict[str, list[float]]:
    """Return microseconds per image of each filter, one per round; the filters alternate in random order."""
    stages = {name: Stage(photos, name) for name in FILTERS}
    for stage in stages.values():
        stage.measure(0)
    found: dict[str, list[float]] = {name: [] for name in FILTERS}
    for number in range(rounds):
        for name in random.Random(number).sample(FILTERS, len(FILTERS)):
            found[name].append(stages[name].measure(number))
    return found


def measure_epochs(loader: Any, seconds: float) -> float:
    """Return images per second over whole epochs."""
    images, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for batch in loader:
            images += len(batch[0])
    return images / (time.perf_counter() - started)


def run_rounds(loaders: dict[str, Any], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return images per second of each loader, one per round; the loaders alternate in random order."""
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for loader in loaders.values():
        measure_epochs(loader, 0.1)
    for number in range(rounds):
        for name in random.Random(number).sample(list(loaders), len(loaders)):
            found[name].append(measure_epochs(loaders[name], seconds))
    return found


def main(
    photos: Path,
    rounds: int = 9,
    stage_rounds: int = 30,
    seconds: float = 0.5,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure, print medians, and write the record."""
    warnings.simplefilter("ignore")
    loaders = {f"{kind}, {name}": open_case(photos, kind, name) for kind, name in CASES if rounds}
    stages = measure_stages(photos, stage_rounds)
    for name, times in stages.items():
        ratio = statistics.median(usual / own for usual, own in zip(stages["bilinear"], times, strict=True))
        typer.echo(f"{name:28} {statistics.median(times):.0f} us per image, {ratio:.2f} times bilinear's rate")
    rates = run_rounds(loaders, rounds, seconds)
    for name, values in rates.items():
        typer.echo(f"{name:28} {statistics.median(values):,.0f} images/s")
    for loader in loaders.values():
        if hasattr(loader, "close"):
            with closing(loader):
                pass
    record = {"environment": describe_environment(), "batch_size": BATCH, "workers": WORKERS, "seconds": seconds}
    if json_file:
        write_json(json_file, record | {"stage_us_per_image": stages, "images_per_s": rates})


if __name__ == "__main__":
    typer.run(main)
