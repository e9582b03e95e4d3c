"""BatchSlots is host memory for batches, allocated once; a slot is reused when no tensor refers to it any more."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.make.layout import BatchLayout, Slot
from penstock.loaders.run.engine.work_items import Produced, batch_row
from penstock.loaders.system.machine import ensure_memory
from penstock.loaders.system.page_lock import page_lock
from penstock.loaders.system.recycled_memory import Recycler
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError

SPARE_SLOTS = 3  # the batch in use, the one on its way to the device, the one just received; or two copied by a GPU


# What HostBatch calls the columns of a slot's rows, and what it has of the report on a batch.
_COLUMNS = {"index": "index", "labels": "label", "windows": "window", "flips": "flip", "places": "place"}
_COLUMNS |= {"turns": "turn", "sizes": "size", "exif": "exif"}
_REPORTED = ("bad", "produce_s", "read_s", "repaired", "moved", "augments")


class BatchSlots:
    """Slots of one batch each, in shared memory for worker processes or in this process's own.

    It can be pickled to a process that is being started. Raises LoaderError E-SHM, E-FD or E-MEM where the memory
    cannot be had.

    Attributes:
        memory: uint8 [count, bytes]; a BatchLayout finds the arrays of a batch in it.
        rows: batch_row [count, batch].
        pinned: whether the slots are page-locked, so that a GPU copies out of them directly.
    """

    pinned = False

    def __init__(self, count: int, layout: BatchLayout, *, shared: bool) -> None:
        """Make `count` slots, each large enough for a batch of `layout`."""
        shape, row = (count, layout.num_bytes), batch_row(layout.num_views)
        self._shared: tuple[SharedArray, SharedArray] | None = None
        if shared:
            self._shared = (
                SharedArray.create(shape, np.uint8, name="penstock-pixels"),
                SharedArray.create((count, layout.batch_size), row, name="penstock-rows"),
            )
            self.memory, self.rows = (part.array for part in self._shared)
        else:
            ensure_memory(math.prod(shape), "batch slots")
            try:
                self.memory, self.rows = np.zeros(shape, np.uint8), np.zeros((count, layout.batch_size), row)
            except MemoryError as error:  # a limit of address space
                raise LoaderError("E-MEM", f"cannot have {math.prod(shape):,} bytes for batch slots") from error

    def __getstate__(self) -> tuple[SharedArray, SharedArray]:
        assert self._shared is not None
        return self._shared

    def __setstate__(self, shared: tuple[SharedArray, SharedArray]) -> None:
        self._shared = shared
        self.memory, self.rows = (part.array for part in shared)

    def pin(self, device: str) -> None:
        """Page-lock the memory where batches go to a CUDA device: such slots are in shared memory, in threads too.

        Raises LoaderError E-MEM where that fails and there is no room for the copies that the feed then makes.
        """
        if torch.device(device).type == "cuda":
            self.pinned = page_lock(self.memory, device)
            if not self.pinned:  # torch rounds pinned memory up to a power of two
                ensure_memory(SPARE_SLOTS << (self.memory[0].nbytes - 1).bit_length(), "pinned copies of batches")

    def hand_out(
        self, produced: Produced, layout: BatchLayout, recycler: Recycler, images: torch.Tensor | None = None
    ) -> HostBatch:
        """Make a batch of a filled slot, which is free again when no tensor refers to the batch's images any more.

        images: uint8 [batch, height, width, 3], instead of the slot's.
        """
        slot = produced.item.slot
        memory, rows = self.memory[slot], self.rows[slot, : layout.batch_size]
        pinned = self.pinned and images is None
        columns: Any = {name: rows[of_row].copy() for name, of_row in _COLUMNS.items()}  # before others have the slot
        made = Slot(layout, memory, rows).extras.items()
        extras = {name: tuple(array.copy() for array in views) for name, views in made}
        found: torch.Tensor | tuple[torch.Tensor, ...]
        if images is not None:
            recycler.give_back(slot)
            found = images
        elif pinned or len(recycler):  # pinned: the feed lets it go when it is copied, and the consumer never has it
            found = _view_images(recycler.tensor(memory, slot), layout)
        else:  # the consumer keeps its batches: this one is copied out, so that the workers have a slot to go on with
            found = _view_images(torch.from_numpy(memory.copy()), layout)
            recycler.give_back(slot)
        more: Any = {name: getattr(produced, name) for name in _REPORTED}
        return HostBatch(
            cursor=produced.item.cursor,
            images=found,
            extras=extras,
            output_sizes=layout.crop_sizes,
            resident=images is not None and images.device.type != "cpu",
            pinned=pinned,
            **columns,
            **more,
        )

    def close(self) -> None:
        """Release the memory; it is freed with the last tensor over it."""
        del self.memory, self.rows
        for part in self._shared or ():
            part.close()


def _view_images(memory: torch.Tensor, layout: BatchLayout) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return the images of each view in the memory of a slot; of one view alone the tensor itself."""
    parts = layout.parts_in(memory)[: layout.num_views]
    views = tuple(part.view(about.torch_dtype).view(-1, *about.shape) for about, part in parts)
    return views[0] if len(views) == 1 else views
