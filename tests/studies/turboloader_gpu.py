"""Measures TurboLoader's CUDA loader on a folder of images: `python tests/studies/turboloader_gpu.py DATA --json OUT`.

Each of its ways to decode makes whole epochs of whole images resized to 224 x 224 (it has no random crops on CUDA),
which is less work than Penstock's. The record contains the best one as the loader, and all of them with their failures.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.system.json_file import write_json

WAYS = ("nvimgcodec", "gpu", "cpu")  # values of `decode`, in the order of speed that its documentation claims
Open = Callable[[Sequence[str], str, int], Iterable[Any]]


def open_loader(paths: Sequence[str], way: str, batch_size: int) -> Iterable[Any]:
    """Make TurboLoader's loader for these files."""
    turboloader = importlib.import_module("turboloader")
    workers = len(os.sched_getaffinity(0))
    loader: Iterable[Any] = turboloader.CudaImageLoader(
        paths, batch_size=batch_size, image_size=224, num_workers=workers, shuffle=True, drop_last=True, decode=way
    )
    return loader


def epoch_rates(loader: Iterable[Any], epochs: int, synchronize: Callable[[], None]) -> list[float]:
    """Return images per second of each epoch, from the number of batches; a first epoch warms up."""
    rates = []
    for _ in range(1 + epochs):
        begin, images = time.perf_counter(), 0
        for batch in loader:
            images += (batch[0] if isinstance(batch, (tuple, list)) else batch).shape[0]
        synchronize()
        rates.append(images / (time.perf_counter() - begin))
    return rates[1:]


def measure(
    paths: Sequence[str], batch_size: int, epochs: int, open_way: Open, synchronize: Callable[[], None]
) -> dict[str, Any]:
    """Measure every way, and return a record for records_table. Raises RuntimeError if none works."""
    measured: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for way in WAYS:
        try:
            rates = epoch_rates(open_way(paths, way, batch_size), epochs, synchronize)
        except Exception as error:  # the package may raise anything, and the other ways may work
            failed[way] = f"{type(error).__name__}: {error}"
            continue
        entry = {"kind": "way", "name": way, "images_per_s": median(rates), "low": min(rates), "high": max(rates)}
        measured.append(entry)
    if not measured:
        raise RuntimeError(f"no way of TurboLoader works here: {failed}")
    best = max(measured, key=lambda entry: entry["images_per_s"])
    return {"what": __doc__, "measured": [best | {"kind": "loader"}, *measured], "failed": failed}


def main() -> int:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    source = ImageFolder(given.data)
    paths = [os.fsdecode(source.path(number)) for number in range(len(source))]
    write_json(given.json, measure(paths, given.batch_size, given.epochs, open_loader, torch.cuda.synchronize))
    return 0


if __name__ == "__main__":
    sys.exit(main())
