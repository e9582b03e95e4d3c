"""Computes how much memory the batch slots of an engine take."""

from __future__ import annotations

import torch

from penstock.loaders.make.layout import BatchLayout
from penstock.loaders.run.engine.slots import SPARE_SLOTS
from penstock.loaders.run.engine.work_items import batch_row
from penstock.loaders.run.workers.needs import Needs

_LEAST_ROWS = 16  # of a part: each costs Python about 0.3 ms, which threads spend one at a time


def share_batches(workers: int, prefetch: int, batch_size: int) -> tuple[int, int]:
    """Return in how many parts threads share a batch, and how many batches they have under way.

    All threads work on one batch where that has rows enough, so that the first one is soon there, and few are locked.
    """
    parts = max(1, min(workers, batch_size // _LEAST_ROWS))
    return parts, (-(-workers // parts) + max(1, prefetch - 1) if workers else 1)


def thread_needs(ahead: int, layout: BatchLayout, library_bytes: int = 0) -> Needs:
    """Return the needs of an engine of threads that has `ahead` batches of `layout` under way.

    library_bytes: what a library that it drives takes by itself.
    """
    return Needs(slot_bytes(ahead, layout), library_bytes, descriptors=16)


def crops_bytes(layout: BatchLayout, workers: int, parts: int = 1) -> int:
    """Return the bytes of the crops that `workers` keep before transforms, each of one of `parts` of a batch."""
    rows = -(-layout.batch_size // parts)
    return max(1, workers) * rows * sum(part.row_bytes for part in layout.crops)


def consumer_bytes(layout: BatchLayout, dtype: torch.dtype, device: str) -> int:
    """Return host bytes needed in addition to the slots: two batches of `dtype` on a CPU, none for uint8.

    A GPU copies out of the slots, whose pinned memory is counted already.
    """
    values = layout.batch_size * sum(part.row_bytes for part in layout.images)
    return 0 if dtype == torch.uint8 or torch.device(device).type != "cpu" else 2 * values * dtype.itemsize


def slot_bytes(ahead: int, layout: BatchLayout) -> int:
    """Return the bytes of the slots of an engine that has `ahead` batches of `layout` under way."""
    row_bytes = batch_row(layout.num_views).itemsize
    return (ahead + SPARE_SLOTS) * (layout.num_bytes + layout.batch_size * row_bytes)
