"""The stream of a loader with indices, one row per sample."""

from __future__ import annotations

import zlib

from penstock.loaders.front.loader import Loader

Row = tuple[int, int, int]  # index, label, CRC of the pixels


def serve(loader: Loader, num_batches: int | None = None, *, pixels: bool = True) -> list[Row]:
    """Return the rows of the rest of the epoch, or of `num_batches`; without `pixels` each CRC is 0."""
    rows: list[Row] = []
    for number, (images, labels, index) in enumerate(loader):
        crcs = [zlib.crc32(image.numpy().tobytes()) if pixels else 0 for image in images.permute(0, 2, 3, 1)]
        rows += zip(index.tolist(), labels.tolist(), crcs, strict=True)
        if number + 1 == num_batches:
            break
    return rows
