"""A producer that reads and plans, and leaves decoding, resize and mirror to DALI wherever DALI can do them."""

from __future__ import annotations

import numpy as np
import torch

from penstock.loaders.engine.producer import Loaded, Producer, ProducerSettings
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.sample.dali_graph import CropTask, dali_takes
from penstock.pipelines.sample.decode import Window


class CropProducer(Producer):
    """Fills the rows that DALI would decode otherwise than the other decoders do; `tasks()` tells of the rest.

    Those rows are images that are no ordinary JPEGs, images to be turned, and windows of a single column, whose chroma
    libjpeg does not upsample as it does that of the whole image. A file that could be refused without decoding it is
    refused here, so that DALI, which fails whole batches, seldom has to.
    """

    decodes_first = False

    def __init__(self, settings: ProducerSettings) -> None:
        super().__init__(settings)
        self._tasks: dict[int, CropTask] = {}

    def _begin(self) -> None:
        self._tasks.clear()

    def tasks(self) -> tuple[tuple[int, CropTask], ...]:
        """See Producer.tasks."""
        return tuple(sorted(self._tasks.items(), key=lambda entry: entry[0]))

    def _write(self, item: Loaded, plan: BatchPlan, place: int, images: torch.Tensor, row: int) -> None:
        task = self._task(item, tuple(plan.windows[place].tolist()), bool(plan.flips[place]))
        if task is None:
            super()._write(item, plan, place, images, row)
        else:
            self._tasks[row] = task

    def _task(self, item: Loaded, window: Window, flip: bool) -> CropTask | None:
        x, y, w, h = window
        if w == 1 or (item.probe is not None and item.probe.orientation != 1):
            return None
        if item.data is None:
            assert self._windows is not None
            part = self._timed(self._windows.read_window, item.sample, window)
            data, left, top = part.data, part.x, part.y
        elif item.probe is None:
            data, left, top = item.data, 0, 0
        else:
            header = item.probe.header
            assert isinstance(item.data, bytes)
            if header is None or not dali_takes(header, item.data):
                return None
            if not jpeg.check_markers(item.data, header) and header.stoppable:
                return None  # DALI stops below the crop; our decoders go on to the end, and refuse what they meet there
            data, left, top = item.data, 0, 0
        if self.decodes_first:
            self._crop(item, window)
        if isinstance(data, bytes):
            return CropTask(data, (x - left, y - top, w, h), flip)
        return CropTask(np.ascontiguousarray(data[y - top : y - top + h, x - left : x - left + w]), (0, 0, w, h), flip)


class CheckedCropProducer(CropProducer):
    """The same after a batch that DALI refused: what our own decoder refuses too is found, and gets a substitute."""

    decodes_first = True
