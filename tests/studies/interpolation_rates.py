"""Compares the filters of the resize in the native sample stage.

`python interpolation_rates.py PHOTOS --rounds 30 --json FILE`: RandomResizedCrop to 224 and flip, in processor time of
one thread, which other load of the machine changes least. sample_rates.py compares whole loaders.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from penstock.bench.record.environment import describe_environment
from penstock.loaders import open_source
from penstock.loaders.make.layout import Slot, image_layout
from penstock.loaders.make.native_rows import native_rows, plan_images
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.loaders.system.json_file import write_json
from penstock.pipelines import imagenet_train

BATCH, SIZE = 50, 224
FILTERS = ("bilinear", "bicubic", "random", "lanczos", "box", "nearest")


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


def main(photos: Path, rounds: int = 30, json_file: Annotated[Path | None, typer.Option("--json")] = None) -> None:
    """Measure, print medians, and write the record."""
    stages = measure_stages(photos, rounds)
    for name, times in stages.items():
        ratio = statistics.median(usual / own for usual, own in zip(stages["bilinear"], times, strict=True))
        typer.echo(f"{name:10} {statistics.median(times):.0f} us per image, {ratio:.2f} times bilinear's rate")
    if json_file:
        about = {"environment": describe_environment(), "batch_size": BATCH}
        write_json(json_file, {**about, "stage_us_per_image": stages})


if __name__ == "__main__":
    typer.run(main)
