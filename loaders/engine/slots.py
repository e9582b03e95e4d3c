"""BatchSlots is host memory for batches, allocated once; a slot is reused when no tensor refers to it any more."""

from __future__ import annotations

import math

import numpy as np
import torch

from penstock.loaders.engine.work import BATCH_ROW, Produced
from penstock.loaders.stream.engine_contract import HostBatch
from penstock.loaders.system.machine import ensure_memory
from penstock.loaders.system.page_lock import page_lock
from penstock.loaders.system.recycled_memory import Recycler
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import ImagePipeline

SPARE_SLOTS = 3  # the batch in use, the one on its way to the device, the one just received; or two copied by a GPU


class BatchSlots:
    """Slots of one batch each, in shared memory for worker processes or in this process's own.

    It can be pickled to a process that is being started. Raises LoaderError E-SHM, E-FD or E-MEM where the memory
    cannot be had.

    Attributes:
        pixels: uint8 [count, batch, height, width, 3].
        rows: BATCH_ROW [count, batch].
        pinned: whether the slots are page-locked, so that a GPU copies out of them directly.
    """

    pinned = False

    def __init__(self, count: int, batch_size: int, pipeline: ImagePipeline, *, shared: bool) -> None:
        shape = (count, batch_size)
        self._shared: tuple[SharedArray, SharedArray] | None = None
        if shared:
            self._shared = (
                SharedArray.create((*shape, *pipeline.size, 3), np.uint8, name="penstock-pixels"),
                SharedArray.create(shape, BATCH_ROW, name="penstock-rows"),
            )
            self.pixels, self.rows = (part.array for part in self._shared)
        else:
            num_bytes = math.prod((*shape, *pipeline.size, 3))
            ensure_memory(num_bytes, "batch slots")
            try:
                self.pixels, self.rows = np.zeros((*shape, *pipeline.size, 3), np.uint8), np.zeros(shape, BATCH_ROW)
            except MemoryError as error:  # a limit of address space
                raise LoaderError("E-MEM", f"cannot have {num_bytes:,} bytes for batch slots") from error

    def __getstate__(self) -> tuple[SharedArray, SharedArray]:
        assert self._shared is not None
        return self._shared

    def __setstate__(self, shared: tuple[SharedArray, SharedArray]) -> None:
        self._shared = shared
        self.pixels, self.rows = (part.array for part in shared)

    def pin(self, device: str) -> None:
        """Page-lock the pixels where batches go to a CUDA device: such slots are in shared memory, in threads too.

        Raises LoaderError E-MEM where that fails and there is no room for the copies that the feed then makes.
        """
        if torch.device(device).type == "cuda":
            self.pinned = page_lock(self.pixels, device)
            if not self.pinned:  # torch rounds pinned memory up to a power of two
                ensure_memory(SPARE_SLOTS << (self.pixels[0].nbytes - 1).bit_length(), "pinned copies of batches")

    def hand_out(self, produced: Produced, recycler: Recycler, images: torch.Tensor | None = None) -> HostBatch:
        """Make a batch of a filled slot, which is free again when no tensor refers to the batch's images any more.

        images: uint8 [batch, height, width, 3], instead of the slot's.
        """
        slot = produced.item.slot
        pixels, rows = self.pixels[slot], self.rows[slot]
        index, labels, windows, flips = (rows[name].copy() for name in ("index", "label", "window", "flip"))
        pinned = self.pinned and images is None
        if images is not None:
            recycler.give_back(slot)
        elif pinned or len(recycler):  # pinned: the feed lets it go when it is copied, and the consumer never has it
            images = recycler.tensor(pixels, slot)
        else:  # the consumer keeps its batches: this one is copied out, so that the workers have a slot to go on with
            images = torch.from_numpy(pixels.copy())
            recycler.give_back(slot)
        resident = images.device.type != "cpu"
        about = (produced.bad, produced.produce_s, resident, produced.read_s, produced.repaired, pinned)
        return HostBatch(produced.item.cursor, images, index, labels, windows, flips, *about)

    def close(self) -> None:
        """Release the memory; it is freed with the last tensor over it."""
        del self.pixels, self.rows
        for part in self._shared or ():
            part.close()
