"""Keeps the sizes of all images of a source between runs, next to the index of a folder."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import SavedColumns, StoredValues, save_columns
from penstock.loaders.data.sources.contract import Source, content_of
from penstock.loaders.make.sizes.read_sizes import read_sizes
from penstock.loaders.system.column_file import narrowest
from penstock.loaders.system.saved_columns import load_saved
from penstock.pipelines.spec import ImagePipeline

_FORMAT = "image sizes 2"


class ImageSizes(NamedTuple):
    """Hold widths and heights of all images, uint16 or int32 [n], in pixels; 0 where an image cannot be read."""

    widths: npt.NDArray[np.integer]
    heights: npt.NDArray[np.integer]


def image_sizes(source: Source, pipeline: ImagePipeline) -> ImageSizes:
    """Return the sizes of all images, as read_sizes reads them, once for each content of the source.

    Those that could not be read are tried again each time: a fault of the storage or of permissions may have healed.
    """
    pipeline = ImagePipeline(exif=pipeline.exif, max_pixels=pipeline.max_pixels)
    content = content_of(source)
    identity = f"{_FORMAT} {content} {len(source)} {pipeline.exif} {pipeline.max_pixels}"
    name = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest().encode("ascii") + b".index"
    saved = load_saved(name, SavedColumns)
    if saved is None or saved.identity != identity:
        sizes = read_sizes(source, pipeline)
    else:
        known = _sizes_in(saved)
        unread = np.flatnonzero(known.widths == 0)
        again = read_sizes(source, pipeline, unread) if len(unread) else np.zeros((0, 2), np.int32)
        if not again.any():
            return known
        sizes = np.stack(known, 1).astype(np.int32)
        sizes[unread] = again
    narrow = (StoredValues(narrowest(column, np.uint16, np.int32)) for column in sizes.T)
    return _sizes_in(save_columns(dict(zip(ImageSizes._fields, narrow, strict=True)), identity, name))


def _sizes_in(saved: SavedColumns) -> ImageSizes:
    return ImageSizes(*(saved.columns[name].values for name in ImageSizes._fields))
