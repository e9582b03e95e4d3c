"""CropTaskProducer: makes tasks of the rows of a batch that DALI can decode, and the images of the other rows."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.make.batch_part import BatchPart
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.native_rows import NativeRows, note_rows
from penstock.loaders.make.producer import Producer
from penstock.loaders.make.python_rows import PythonRows, choose_filter
from penstock.loaders.make.sample_reader import Loaded
from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.sample.dali_graph import CropTask, dali_can_decode


class CropTaskProducer(Producer):
    """Makes batch parts with `tasks` for the crops that DALI decodes; their rows of the slot are not written.

    Args:
        checked: make tasks only of samples that our decoder accepts, because DALI has refused the batch.
    """

    def __init__(self, planner: BatchPlanner, *, checked: bool = False) -> None:
        self._tasks = tasks = dict[int, CropTask]()
        super().__init__(planner, _CropTaskRows(planner, tasks, checked=checked))
        self._sound = planner.sound if planner.on_repaired != "ignore" else None
        if checked:  # Python makes all tasks: the library does not decode what it prepares
            self._native = None

    def produce(self, *arguments: Any, **more: Any) -> BatchPart:
        """Write the batch as Producer does, except the rows of its tasks."""
        self._tasks.clear()
        batch = super().produce(*arguments, **more)
        lost = {row for row, entry in batch.bad.items() if entry.substitute < 0}
        batch.tasks = tuple((row, self._tasks[row]) for row in sorted(self._tasks) if row not in lost)
        return batch

    def _make_natively(self, native: NativeRows, batch: BatchPart) -> npt.NDArray[np.intp] | None:
        """Add the rows that the library can prepare to the tasks."""
        samples, slot = batch.index[batch.left], batch.crops
        prepared = native.prepare(samples, batch.left, batch.content.plan, batch.progress, self._sound, batch.keys)
        if prepared is None:
            return None
        flips = (prepared.rows["flip"] != 0).tolist()
        height, width, _ = slot.layout.images[0].shape
        filters = prepared.rows["interpolation"].tolist()
        tasks = map(CropTask, prepared.data, prepared.inside, flips, repeat((height, width)), filters)
        self._tasks.update(zip(prepared.rows["row"].tolist(), tasks, strict=True))
        note_rows(prepared.rows[:, None], slot.rows)
        return prepared.rows["row"].astype(np.intp)


class _CropTaskRows(PythonRows):
    """Adds the rows that the native library does not support to `tasks`; makes rows that DALI decodes differently."""

    def __init__(self, planner: BatchPlanner, tasks: dict[int, CropTask], *, checked: bool) -> None:
        super().__init__(planner)
        self._tasks, self._checked = tasks, checked

    def _write(self, row: int, item: Loaded, plans: list[BatchPlan], at: int, batch: BatchPart) -> None:
        self._tasks.pop(row, None)  # the task of a replaced sample, or one that the library could not complete
        (plan,) = plans
        window: Window = tuple(plan.windows[at].tolist())
        task = self._task(item, window, bool(plan.flips[at]))
        if task is None:
            super()._write(row, item, plans, at, batch)
            return
        if self._checked:
            self._reader.crop(item, window)
        height, width, _ = batch.crops.layout.images[0].shape
        self._tasks[row] = task._replace(size=(height, width), interpolation=choose_filter(batch, row, item.sample))

    def _task(self, item: Loaded, window: Window, flip: bool) -> CropTask | None:
        """Return the task of a row; None if DALI would decode it differently from the other decoders.

        This is the case for images that are not ordinary JPEGs, images that EXIF turns, and windows of a single column:
        libjpeg upsamples the chroma of such a window differently from that of the whole image. A file that can be
        refused without decoding is refused here (LoaderError), because DALI fails whole batches.
        """
        x, y, w, h = window
        if w == 1 or (item.probe is not None and item.probe.orientation != 1):
            return None
        data = item.data
        if isinstance(data, np.ndarray):
            return CropTask(np.ascontiguousarray(data[y : y + h, x : x + w]), (0, 0, w, h), flip)
        header = None if item.probe is None else item.probe.header
        if header is None or not dali_can_decode(header, data) or not self._reader.sound(item):
            return None  # DALI does not report repairs
        if not jpeg.check_markers(data, header) and header.stoppable:
            return None  # DALI stops below the crop; our decoders continue to the end, and refuse an error there
        return CropTask(data, (x, y, w, h), flip)
