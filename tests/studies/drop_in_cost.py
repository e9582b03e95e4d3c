"""Measures the overhead of the drop-in DataLoader compared with torch's, with torch's defaults and start method.

`python tests/studies/drop_in_cost.py [--repeats N] [--json OUT]` alternates the two in one process, and prints each
median with minimum and maximum. The exit code is 1 if ours takes more than 1.3 times as long as torch's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, TensorDataset

from penstock.loaders.drop_in.data_loader import DataLoader
from penstock.loaders.system.json_file import write_json

LIMIT = 1.3
PATHS = 1_280_000  # the size of ImageNet
WORKERS = 2
Kind = Callable[..., Any]


class Paths(Dataset[int]):
    """A list of as many paths as ImageNet has images, stored as by torchvision's folders."""

    def __init__(self) -> None:
        self.samples = [(f"/data/train/n{k % 1000:08d}/n{k % 1000:08d}_{k}.JPEG", k % 1000) for k in range(PATHS)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return self.samples[index][1]


def first_batch_ms(kind: Kind, dataset: Any, **settings: Any) -> float:
    """Return how long a new loader takes for its first batch and its end."""
    start = time.perf_counter()
    batches = iter(kind(dataset, 64, shuffle=True, **settings))
    next(batches)
    spent = time.perf_counter() - start
    del batches
    return 1e3 * spent


def epoch_ms(kind: Kind, dataset: Any, **settings: Any) -> float:
    """Return the duration of an epoch."""
    start = time.perf_counter()
    for _ in kind(dataset, 64, shuffle=True, **settings):
        pass
    return 1e3 * (time.perf_counter() - start)


def worker_mb(kind: Kind, dataset: Any) -> float:
    """Return the private memory of a worker after 200 batches."""
    batches = iter(kind(dataset, 64, shuffle=True, num_workers=WORKERS))
    for _ in range(200):
        next(batches)
    own = [psutil.Process(worker.pid).memory_full_info().uss for worker in batches._workers]
    return statistics.mean(own) / 1e6


def cases() -> dict[str, Callable[[Kind], float]]:
    """Return the measurements, by name and unit."""
    tensors = TensorDataset(torch.zeros(100_000, 16), torch.arange(100_000))
    small = TensorDataset(torch.zeros(20_000, 16), torch.arange(20_000))
    paths = Paths()
    return {
        "first batch, no workers (ms)": lambda kind: first_batch_ms(kind, tensors),
        f"first batch, {WORKERS} workers (ms)": lambda kind: first_batch_ms(kind, tensors, num_workers=WORKERS),
        "epoch of a TensorDataset, no workers (ms)": lambda kind: epoch_ms(kind, tensors),
        f"epoch of a TensorDataset, {WORKERS} workers (ms)": lambda kind: epoch_ms(kind, small, num_workers=WORKERS),
        f"first batch of {PATHS:,} paths, {WORKERS} workers (ms)": lambda kind: first_batch_ms(
            kind, paths, num_workers=WORKERS
        ),
        f"epoch of {PATHS:,} paths, no workers (ms)": lambda kind: epoch_ms(kind, paths),
        f"memory a worker, {PATHS:,} paths (MB)": lambda kind: worker_mb(kind, paths),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for name, measure in cases().items():
        seen: dict[str, list[float]] = {"torch": [], "penstock": []}
        for repeat in range(options.repeats + 1):
            for who, kind in (("torch", TorchDataLoader), ("penstock", DataLoader)):
                value = measure(kind)
                if repeat:  # the first round warms up
                    seen[who].append(value)
        found[name] = seen
        theirs, ours = (statistics.median(seen[who]) for who in ("torch", "penstock"))
        spread = ", ".join(f"{who} {min(v):.1f} to {max(v):.1f}" for who, v in seen.items())
        print(f"{name}: {ours:.1f} beside {theirs:.1f}, {ours / theirs:.2f} times ({spread})", flush=True)
    if options.json:
        write_json(options.json, {"torch": torch.__version__, "cases": found})
    medians = [[statistics.median(values) for values in seen.values()] for seen in found.values()]
    return int(any(ours > LIMIT * theirs for theirs, ours in medians))


if __name__ == "__main__":
    sys.exit(main())
