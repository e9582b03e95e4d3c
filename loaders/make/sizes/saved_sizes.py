"""Keeps the sizes of all images of a source between runs, next to the index of a folder."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

import numpy as np

from penstock.loaders.data.files.contract import Source
from penstock.loaders.make.sizes.read_sizes import read_sizes
from penstock.loaders.system.column_file import ColumnFile, narrowest, write_columns
from penstock.loaders.system.saved_columns import load_saved, save_index
from penstock.pipelines.spec import ImagePipeline

_KINDS = {"widths": ("<u2", "<i4"), "heights": ("<u2", "<i4")}
_FORMAT = "image sizes 1"


class SavedSizes:
    """Map the sizes of all images of a source.

    Attributes:
        widths: uint16 or int32 [n], in pixels; 0 where an image cannot be read.
        heights: as widths.
    """

    def __init__(self, path: bytes, verify: bool) -> None:
        """Open the file at `path`. Raises DamagedIndexError."""
        file = ColumnFile(path, _KINDS, verify=verify)
        self.widths, self.heights = file.columns["widths"], file.columns["heights"]
        self.header = file.header


def image_sizes(source: Source, pipeline: ImagePipeline) -> SavedSizes:
    """Return the sizes of all images, as read_sizes reads them, once for each content of the source.

    Those that could not be read are tried again each time: a fault of the storage or of permissions may have healed.
    """
    pipeline = ImagePipeline(exif=pipeline.exif, max_pixels=pipeline.max_pixels)
    content = getattr(source, "content", source.fingerprint)
    header = f"{_FORMAT} {content} {len(source)} {pipeline.exif} {pipeline.max_pixels}".encode()
    name = hashlib.blake2b(header, digest_size=16).hexdigest().encode("ascii") + b".index"
    saved = load_saved(name, SavedSizes)
    if saved is None or saved.header != header or len(saved.widths) != len(source):
        sizes = read_sizes(source, pipeline)
    else:
        unread = np.flatnonzero(saved.widths == 0)
        again = read_sizes(source, pipeline, unread) if len(unread) else np.zeros((0, 2), np.int32)
        if not again.any():
            return saved
        sizes = np.stack((saved.widths, saved.heights), 1).astype(np.int32)
        sizes[unread] = again

    def write(file: BinaryIO) -> None:
        columns = {each: narrowest(sizes[:, at], np.uint16, np.int32) for at, each in enumerate(_KINDS)}
        write_columns(file, header, columns, _KINDS)

    return save_index(name, write, SavedSizes)
