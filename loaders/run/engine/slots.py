"""BatchSlots: reusable host memory for batches, and the amount that an engine needs."""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.loaders.make.engine_contract import HostBatch
from penstock.loaders.make.layout import BatchLayout, Slot
from penstock.loaders.run.engine.work_items import Produced, batch_row
from penstock.loaders.run.workers.needs import Needs
from penstock.loaders.system.machine import ensure_memory
from penstock.loaders.system.recycled_memory import Recycler
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.plan.crops import BatchPlan

_PORTABLE = 1  # cudaHostRegisterPortable: every device of this process may read it
_LEAST_ROWS = 16  # per part: a part costs about 0.3 ms of Python, which threads cannot share
SPARE_SLOTS = 3  # the batch in use, the one on its way to the device, the one just received; or two copied by a GPU


class BatchSlots:
    """Slots of one batch each, in shared memory for worker processes or in this process's own memory.

    It can be pickled to a process that is being started. Raises LoaderError E-SHM, E-FD or E-MEM if there is not
    enough memory.

    Attributes:
        memory: uint8 [count, bytes]; a BatchLayout describes the arrays of a batch in it.
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
                raise LoaderError("E-MEM", f"cannot allocate {math.prod(shape):,} bytes for batch slots") from error

    def __getstate__(self) -> tuple[SharedArray, SharedArray]:
        assert self._shared is not None
        return self._shared

    def __setstate__(self, shared: tuple[SharedArray, SharedArray]) -> None:
        self._shared = shared
        self.memory, self.rows = (part.array for part in shared)

    def pin(self, device: str) -> None:
        """Page-lock the memory for batches to a CUDA device. Such slots are in shared memory, also for threads.

        Raises LoaderError E-MEM if page-locking fails and there is no memory for the copies that the feed then makes.
        """
        if torch.device(device).type == "cuda":
            self.pinned = page_lock(self.memory, device)
            if not self.pinned:  # torch rounds pinned memory up to a power of two
                ensure_memory(SPARE_SLOTS << (self.memory[0].nbytes - 1).bit_length(), "pinned copies of batches")

    def hand_out(
        self, produced: Produced, layout: BatchLayout, recycler: Recycler, images: torch.Tensor | None = None
    ) -> HostBatch:
        """Return the batch in a filled slot, which is freed when no tensor refers to the batch's images any more.

        images: uint8 [batch, height, width, 3], instead of the slot's images.
        """
        slot = produced.item.slot
        memory, rows = self.memory[slot], self.rows[slot, : layout.batch_size]
        pinned = self.pinned and images is None
        columns = {name: rows[name].copy() for name in rows.dtype.names or ()}  # before the slot is reused
        made = Slot(layout, memory, rows).extras.items()
        extras = {name: tuple(array.copy() for array in views) for name, views in made}
        found: torch.Tensor | tuple[torch.Tensor, ...]
        if images is not None:
            recycler.give_back(slot)
            found = images
        elif pinned or len(recycler):  # pinned: the feed frees it after the copy, and the consumer never holds it
            found = _view_images(recycler.tensor(memory, slot), layout)
        else:  # the consumer keeps its batches: copy this one, so that the workers have a free slot
            found = _view_images(torch.from_numpy(memory.copy()), layout)
            recycler.give_back(slot)
        return HostBatch(
            cursor=produced.item.cursor,
            images=found,
            index=columns["index"],
            labels=columns["label"],
            plan=BatchPlan(*(columns[name] for name in ("window", "flip", "place", "turn"))),
            sizes=columns["size"],
            exif=columns["exif"],
            extras=extras,
            output_sizes=layout.crop_sizes,
            resident=images is not None and images.device.type != "cpu",
            pinned=pinned,
            bad=produced.bad,
            repaired=produced.repaired,
            moved=produced.moved,
            augments=produced.augments,
            produce_s=produced.produce_s,
            read_s=produced.read_s,
            warned=produced.warned,
        )

    def close(self) -> None:
        """Release the memory; it is freed with the last tensor over it."""
        del self.memory, self.rows
        for part in self._shared or ():
            part.close()


def _view_images(memory: torch.Tensor, layout: BatchLayout) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return the images of each view in the memory of a slot, or the tensor itself for a single view."""
    parts = layout.parts_in(memory)[: layout.num_views]
    views = tuple(part.view(about.torch_dtype).view(-1, *about.shape) for about, part in parts)
    return views[0] if len(views) == 1 else views


def share_batches(workers: int, prefetch: int, batch_size: int) -> tuple[int, int]:
    """Return the number of parts in which threads share a batch, and the number of batches in progress.

    All threads work on one batch if it has enough rows. So the first batch is finished early, and few slots are locked.
    """
    parts = max(1, min(workers, batch_size // _LEAST_ROWS))
    return parts, (-(-workers // parts) + max(1, prefetch - 1) if workers else 1)


def thread_needs(ahead: int, layout: BatchLayout, library_bytes: int = 0) -> Needs:
    """Return the needs of an engine of threads with `ahead` batches of `layout` in progress.

    library_bytes: memory of a library that it uses.
    """
    return Needs(slot_bytes(ahead, layout), library_bytes, descriptors=16)


def crops_bytes(layout: BatchLayout, workers: int, parts: int = 1) -> int:
    """Return the bytes of the crops that `workers` keep before transforms, each for one of `parts` of a batch."""
    rows = -(-layout.batch_size // parts)
    return max(1, workers) * rows * sum(part.row_bytes for part in layout.crops)


def consumer_bytes(layout: BatchLayout, dtype: torch.dtype, device: str) -> int:
    """Return host bytes needed in addition to the slots: two batches of `dtype` on a CPU, none for uint8.

    A GPU copies out of the slots, and their pinned memory is already counted.
    """
    values = layout.batch_size * sum(part.row_bytes for part in layout.images)
    return 0 if dtype == torch.uint8 or torch.device(device).type != "cpu" else 2 * values * dtype.itemsize


def slot_bytes(ahead: int, layout: BatchLayout) -> int:
    """Return the bytes of the slots of an engine with `ahead` batches of `layout` in progress."""
    row_bytes = batch_row(layout.num_views).itemsize
    return (ahead + SPARE_SLOTS) * (layout.num_bytes + layout.batch_size * row_bytes)


def page_lock(memory: npt.NDArray[Any], device: str) -> bool:
    """Page-lock `memory` for `device`; return whether it succeeded, and warn if not.

    Its pages must be shared, and used for nothing else, as in a SharedArray. After a fork, a process that writes to
    private pages would get copies that the device does not know.
    """
    try:
        with torch.cuda.device(device):  # no context on another GPU
            cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = int(cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, _PORTABLE))
            why = f"CUDA error {status}" if status else ""
            if status:  # CUDA reports the error again at the next kernel: run one here, before the user does
                with contextlib.suppress(RuntimeError):
                    torch.ones(1, dtype=torch.uint8, device=device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA, a forked process
        why = str(error)
    if why:
        text = f"batch slots cannot be page-locked ({why}): each batch needs an additional copy on the host"
        warn_user(text, RuntimeWarning)
        return False
    # No copy out of it is running then: each copy keeps a view until it is finished.
    weakref.finalize(memory, _unlock, memory.ctypes.data, device, os.getpid()).atexit = False
    return True


def _unlock(address: int, device: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked child cannot use CUDA, and the parent still uses the memory
        return
    with torch.cuda.device(device):  # no context on another GPU: any thread may delete the last view
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
