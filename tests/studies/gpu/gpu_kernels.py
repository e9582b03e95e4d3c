"""Checks and times page locking, copies and the fused kernels: `gpu_kernels.py OUT.json DEVICE [--check]`.

On a CPU it tries the same code with small batches. --check ends after the comparison with the CPU, with code 1 if a
kernel is wrong (for compute-sanitizer).
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import numpy as np
import torch
from gpu_notes import Notes
from gpu_timing import host_ms, median_ms

from penstock.loaders.run.engine.slots import page_lock
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.batch import fused_check
from penstock.pipelines.batch import stage as stages
from penstock.pipelines.batch.fused import DTYPES
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.plan.augmentations import BatchKey
from penstock.pipelines.spec import imagenet_train

SIZE, SLOTS = 224, 7
FULL = Augmentations(auto_augment="rand", color_jitter=(0.4, 0.4, 0.4, 0.1), erasing=0.25, mixup=0.2, cutmix=1.0)
RECIPES = {"plain": Augmentations(), "rand": Augmentations(auto_augment="rand"), "full": FULL}
CPU = torch.device("cpu")


def check_kernels(notes: Notes, device: torch.device) -> bool:
    """Compile the kernels for each dtype and compare them with the CPU to the bit; return whether all are right."""
    right = True
    for dtype in DTYPES:
        start = time.perf_counter()
        fault = fused_check._find_fault(device, dtype) if device.type == "cuda" else "no CUDA"
        notes.note(f"check {dtype}", {"fault": fault, "seconds": round(time.perf_counter() - start, 2)})
        right = right and not fault
    return right


def time_copies(notes: Notes, device: torch.device, batch: int) -> None:
    """Page-lock slots, and time copies from them, from torch's pinned memory and from pageable memory."""
    num_bytes = batch * SIZE * SIZE * 3
    shared = SharedArray.create((SLOTS, num_bytes), np.uint8)
    shared.array[:] = 7
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        start = time.perf_counter()
        locked = page_lock(shared.array, str(device))
        seconds = (time.perf_counter() - start) / (shared.array.nbytes / 1e9)
    notes.note("page lock", {"worked": locked, "s per GB": round(seconds, 3), "said": [str(w.message) for w in said]})
    target = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    pinned = torch.empty(num_bytes, dtype=torch.uint8).pin_memory()
    ways = {"slot": torch.from_numpy(shared.array[3]), "pinned": pinned, "pageable": torch.ones_like(pinned)}
    for name, memory in ways.items():
        ms = median_ms(lambda memory=memory: target.copy_(memory, non_blocking=True), device)
        queued = host_ms(lambda memory=memory: target.copy_(memory, non_blocking=True), device)
        about = {"GB/s": round(num_bytes / 1e6 / ms, 1), "is_pinned": memory.is_pinned(), "host ms to queue": queued}
        notes.note(f"copy of {name}", about)
    large = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    notes.note(
        "copy on the device, GB/s read and written", round(2 * large.nbytes / 1e6 / median_ms(large.clone, device))
    )


def time_recipe(notes: Notes, device: torch.device, name: str, dtype: torch.dtype, images: torch.Tensor) -> None:
    """Time the batch stage; count values that differ from torch's kernels and, in bfloat16, from the CPU's."""
    pipeline, batch = imagenet_train(SIZE, augment=RECIPES[name]), len(images)
    fused = BatchStage(pipeline, dtype, device, num_classes=1000)
    chosen = stages.choose_fused_stage
    stages.choose_fused_stage = lambda *_, **__: None
    try:
        plain, cpu = (BatchStage(pipeline, dtype, each, num_classes=1000) for each in (device, CPU))
    finally:
        stages.choose_fused_stage = chosen
    there, plan = images.to(device), cpu.plan(BatchKey(3, 1, np.arange(batch)))
    about = {
        "fused": fused.fused,
        "ms": median_ms(lambda: fused(there, plan=plan), device),
        "ms of torch's kernels": median_ms(lambda: plain(there, plan=plan), device, 5),
        "host ms to queue": host_ms(lambda: fused(there, plan=plan), device),
        # The same operations; up to torch 2.10 CUDA's addcmul differs by one float32 ulp.
        "differ from torch's kernels": int((fused(there, plan=plan) != plain(there, plan=plan)).sum()),
    }
    if dtype == torch.bfloat16:  # for a part, which takes a CPU seconds
        some = min(batch, 64)
        plan = cpu.plan(BatchKey(3, 1, np.arange(some)))
        expected = cpu(images[:some], plan=plan)
        about["differ from the CPU"] = int((fused(there[:some], plan=plan).cpu() != expected).sum())
    notes.note(f"{name} {dtype}", about)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("device", type=torch.device)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    device, notes = given.device, Notes(None if given.check else given.out)
    on_gpu = device.type == "cuda"
    if on_gpu:
        device = torch.device("cuda", torch.cuda.current_device())
    right = check_kernels(notes, device)
    if given.check:
        return int(not right)
    batch = 256 if on_gpu else 2
    if on_gpu:
        time_copies(notes, device, batch)
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (batch, SIZE, SIZE, 3), np.uint8))
    for name in RECIPES:
        for dtype in (torch.bfloat16, torch.float32):
            time_recipe(notes, device, name, dtype, images)
    if on_gpu:
        notes.note("most memory, MB", round(torch.cuda.max_memory_allocated() / 1e6))
    return int(on_gpu and not right)


if __name__ == "__main__":
    sys.exit(main())
