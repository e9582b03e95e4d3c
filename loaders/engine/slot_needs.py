"""Computes how much memory the batch slots of an engine take."""

from __future__ import annotations

import math

import torch

from penstock.loaders.engine.slots import SPARE_SLOTS
from penstock.loaders.engine.work import BATCH_ROW
from penstock.loaders.workers.needs import Needs


def thread_needs(ahead: int, batch_size: int, size: tuple[int, int], library_bytes: int = 0) -> Needs:
    """Return the needs of an engine of threads that has `ahead` batches of `size` (height, width) under way.

    library_bytes: what a library that it drives takes by itself.
    """
    return Needs(slot_bytes(ahead, batch_size, size), library_bytes, descriptors=16)


def consumer_bytes(batch_size: int, size: tuple[int, int], dtype: torch.dtype, device: str) -> int:
    """Return host bytes needed in addition to the slots: two batches of `dtype` on a CPU, none for uint8.

    A GPU copies out of the slots, whose pinned memory is counted already.
    """
    values = batch_size * math.prod(size) * 3
    return 0 if dtype == torch.uint8 or torch.device(device).type != "cpu" else 2 * values * dtype.itemsize


def slot_bytes(ahead: int, batch_size: int, size: tuple[int, int]) -> int:
    """Return the bytes of the slots of an engine that has `ahead` batches of `size` (height, width) under way."""
    return (ahead + SPARE_SLOTS) * batch_size * (math.prod(size) * 3 + BATCH_ROW.itemsize)
