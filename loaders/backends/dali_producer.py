"""Tasks for DALI: which rows of a batch it decodes, and what it needs of each."""

from __future__ import annotations

import numpy as np

from penstock.loaders.engine.sample_reader import Loaded, SampleReader
from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.sample.dali_graph import CropTask, dali_can_decode


def crop_task(reader: SampleReader, item: Loaded, window: Window, flip: bool) -> CropTask | None:
    """Make a row a task for DALI; None where DALI would decode it otherwise than the other decoders do.

    Those rows are images that are no ordinary JPEGs, images to be turned, and windows of a single column, whose chroma
    libjpeg does not upsample as it does that of the whole image. A file that could be refused without decoding it is
    refused here (LoaderError), so that DALI, which fails whole batches, seldom has to.
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
        if header is None or not dali_can_decode(header, data):
            return None
        if not jpeg.check_markers(data, header) and header.stoppable:
            return None  # DALI stops below the crop; our decoders go on to the end, and refuse what they meet there
    if isinstance(data, bytes):
        return CropTask(data, (x - left, y - top, w, h), flip)
    return CropTask(np.ascontiguousarray(data[y - top : y - top + h, x - left : x - left + w]), (0, 0, w, h), flip)


def checked_crop_task(reader: SampleReader, item: Loaded, window: Window, flip: bool) -> CropTask | None:
    """Make a task as crop_task does, of what our own decoder takes: for a batch that DALI has refused."""
    task = crop_task(reader, item, window, flip)
    if task is not None:
        reader.crop(item, window)
    return task
