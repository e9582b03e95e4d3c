"""Counts the costs of a batch for a GPU and its host, without a GPU, and prints a Markdown table.

`python tests/studies/device_costs.py [--json OUT]`. torch's meta device stands in for the GPU: operations are counted
but not run. The columns are kernels, copies to the device, copies from pageable memory (which block the host), bytes
page-locked at the same time, steps that the host queues while the device is busy, and microseconds of processor time in
`next()` without CUDA's driver.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

sys.path.extend(str(each) for each in (Path(__file__).resolve().parents[1] / "support").iterdir())
from kernel_count import KernelCount
from make_planner import make_planner
from memory_source import MemorySource
from photo_folder import photo
from stub_cuda import StubCudart

from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.choose import open_engine
from penstock.loaders.run.engine.process_engine import ProcessOptions
from penstock.loaders.run.feed.batch_feed import DeviceFeed
from penstock.loaders.run.feed.tensor_feed import TensorFeed
from penstock.loaders.system.json_file import write_json
from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch import fused, stage
from penstock.pipelines.plan.augmentations import BatchKey
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.spec import ImagePipeline

META = torch.device("meta")
BATCH, SIZE, STEPS = 256, 224, 24
FULL = Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.25, mixup=0.2, cutmix=1.0)
LOADERS = {"plain": Augmentations(), "augmented": FULL}
ENGINES = {"16 threads": (16, "threads"), "8 processes": (8, "processes")}


class Copies:
    """A copy engine for a device that runs a step only when the host waits for it."""

    def __init__(self) -> None:
        self.queued = self.done = self.locked = self.most_locked = 0

    def pinned(self, like: torch.Tensor) -> torch.Tensor:
        memory = torch.empty_like(like)
        self._lock(rounded := 1 << (like.nbytes - 1).bit_length())  # as torch's pool rounds
        weakref.finalize(memory, self._lock, -rounded)
        return memory

    def _lock(self, num_bytes: int) -> None:
        self.locked += num_bytes
        self.most_locked = max(self.most_locked, self.locked)

    def side(self) -> Any:
        return nullcontext()

    def mark(self) -> int:
        return 0

    def mark_consumer(self) -> int:
        return self.queued

    def wait_on_host(self, event: int) -> None:
        self.done = max(self.done, event)

    def hand_over(self, event: int, tensors: tuple[torch.Tensor, ...]) -> None:
        pass


class Count(KernelCount):
    """Counts copies to the device separately from kernels, and launches of fused kernels as kernels."""

    def __init__(self, is_locked: Any) -> None:
        super().__init__()
        self.copies, self.pageable, self._is_locked = 0, 0, is_locked

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        if func.overloadpacket.__name__ == "_to_copy" and not given[0].is_meta:
            self.copies += 1
            self.pageable += given[0].ndim == 4 and not self._is_locked(given[0])
            return func(*args, **(kwargs or {}))
        if any(part.is_meta for part in given):
            return super().__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    def launch(self, name: str, *_: Any, **__: Any) -> None:
        self.kernels[name] += 1


def feed_costs(feed: Any, copies: Copies, count: Count) -> dict[str, float]:
    """Count over batches of a feed; microseconds are the median of STEPS batches."""
    launch, fused.launch = fused.launch, lambda *_, **__: None
    for _ in range(4):
        feed.next()
    spent, ahead = [], 0
    for _ in range(STEPS):
        start = time.thread_time()
        feed.next()
        spent.append(time.thread_time() - start)
        copies.queued += 1
        ahead = max(ahead, copies.queued - copies.done)
    fused.launch = count.launch
    with count:
        for _ in range(STEPS):
            feed.next()
    fused.launch = launch
    return {
        "kernels": count.num_kernels / STEPS,
        "copies": count.copies / STEPS,
        "pageable": count.pageable / STEPS,
        "steps queued": ahead,
        "locked MB": copies.most_locked / 1e6,
        "host us": 1e6 * statistics.median(spent),
    }


def loader_costs(augment: Augmentations, *, triton: bool) -> dict[str, float]:
    """Count for batches of create_loader in page-locked slots, as bfloat16."""
    numbers = np.arange(BATCH)
    boxes, zeros = np.zeros((BATCH, 4), np.int32), np.zeros(BATCH, np.uint8)
    images = torch.zeros((BATCH, SIZE, SIZE, 3), dtype=torch.uint8)
    batch = HostBatch(
        Cursor(0, 0), images, numbers, numbers, BatchPlan(boxes, zeros > 0, boxes, zeros), (), 0.0, pinned=True
    )
    chosen = (lambda levels, device, **_: fused.FusedStage(levels, device)) if triton else (lambda *_, **__: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "choose_fused_stage", chosen)
        staged = stage.BatchStage(
            ImagePipeline(size=(SIZE, SIZE), augment=augment), torch.bfloat16, META, num_classes=9
        )
    batch = replace(batch, augments=(staged.plan(BatchKey(0, 0, numbers)),))
    copies = Copies()
    return feed_costs(DeviceFeed(lambda: batch, lambda: 1, staged, copies=copies), copies, Count(lambda _: True))


def drop_in_costs(*, by_thread: bool) -> dict[str, float]:
    """Count for float32 batches of the drop-in DataLoader with a device, page-locked by its thread or not."""
    batch = torch.zeros((BATCH, 3, SIZE, SIZE)), torch.zeros(BATCH, dtype=torch.int64)
    copies = Copies()
    count = Count(lambda tensor: by_thread or tensor.data_ptr() != batch[0].data_ptr())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "is_pinned", lambda tensor: by_thread)
        return feed_costs(TensorFeed(lambda: batch, lambda: 1, META, copies=copies), copies, count)


def slot_megabytes(workers: int, kind: str) -> float:
    """Start an engine for a GPU, and return the megabytes that it page-locks for batches of BATCH."""
    source = MemorySource([photo(number) for number in range(8)] * (BATCH // 8))
    pipeline = ImagePipeline(size=(SIZE, SIZE))
    with pytest.MonkeyPatch.context() as patch:
        cudart = StubCudart(patch)
        settings = make_planner(source, {"batch_size": BATCH}, device="cuda:0", pipeline=pipeline)
        engine = open_engine("torch", settings, ProcessOptions(workers=workers, workers_are=kind))
        engine.seek(Cursor(0, 0))
        locked = sum(cudart.locked.values())
        engine.close()
    return locked / 1e6


def table(rows: dict[str, dict[str, float]]) -> str:
    names = list(next(iter(rows.values())))
    lines = [["batch of", *names], ["---", *("---:" for _ in names)]]
    lines += [[what, *(f"{found[name]:.4g}" for name in names)] for what, found in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {
        f"create_loader, {name}, {'fused kernels' if triton else 'torch'}": loader_costs(augment, triton=triton)
        for name, augment in LOADERS.items()
        for triton in (True, False)
    }
    rows["DataLoader, pageable float32"] = drop_in_costs(by_thread=False)
    rows["DataLoader, page-locked by its thread"] = drop_in_costs(by_thread=True)
    slots = {name: slot_megabytes(*engine) for name, engine in ENGINES.items()}
    print(table(rows))
    print("\n".join(f"slots of {name}: {size:,.0f} MB page-locked" for name, size in slots.items()))
    if given.json:
        write_json(given.json, {"batches": rows, "slots": slots})


if __name__ == "__main__":
    main()
