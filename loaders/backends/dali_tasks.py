"""Choose the rows of a batch that DALI decodes, and make a task of each."""

from __future__ import annotations

import numpy as np

from penstock.loaders.engine.producer import MakeTask
from penstock.loaders.engine.sample_reader import Loaded, SampleReader
from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.sample.dali_graph import CropTask, dali_can_decode


def _task_of_row(reader: SampleReader, item: Loaded, window: Window, flip: bool) -> CropTask | None:
    """Make a task for DALI of a row; None where DALI would decode it differently from the other decoders.

    It would for images that are no ordinary JPEGs, images to be turned, and windows of a single column, whose chroma
    libjpeg does not upsample as it does that of the whole image. A file that can be refused without decoding it is
    refused here (LoaderError), because DALI fails whole batches.
    """
    x, y, w, h = window
    if w == 1 or (item.probe is not None and item.probe.orientation != 1):
        return None
    data, left, top = item.data, 0, 0
    if data is None:
        part, _ = reader.part(item, window)
        data, left, top = part.data, part.x, part.y
    elif item.probe is not None:
        header = item.probe.header
        assert isinstance(data, bytes)
        if header is None or not dali_can_decode(header, data) or not reader.sound(item):
            return None  # DALI does not tell what it repairs
        if not jpeg.check_markers(data, header) and header.stoppable:
            return None  # DALI stops below the crop; our decoders go on to the end, and refuse an error there
    if isinstance(data, bytes):
        return CropTask(data, (x - left, y - top, w, h), flip)
    return CropTask(np.ascontiguousarray(data[y - top : y - top + h, x - left : x - left + w]), (0, 0, w, h), flip)


def _checked_task_of_row(reader: SampleReader, item: Loaded, window: Window, flip: bool) -> CropTask | None:
    task = _task_of_row(reader, item, window, flip)
    if task is not None:
        reader.crop(item, window)
    return task


crop_task = MakeTask(_task_of_row, CropTask)
# The same, but only of a sample that our own decoder accepts: DALI has refused the batch.
checked_crop_task = MakeTask(_checked_task_of_row)
