"""Stored bytes of a cache, read by the format's description and not by its reader."""

from __future__ import annotations

import numpy as np
import simplejpeg

from penstock.loaders.cache_build.encode import Stored
from penstock.loaders.data.cache.format import FILE, STRIP, STRIPS
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline


def num_strips(stored: Stored) -> int:
    """Return the number of strips of a sample, from its record."""
    record = stored.record
    rows = -(-int(record["height"]) // int(record["mcu_height"])) if record["kind"] == STRIPS else int(record["height"])
    return -(-rows // int(record["strip_rows"]))


def head_of(stored: Stored) -> tuple[np.ndarray, bytes, bytes]:
    """(strip table, JPEG header, coded bytes) of STRIPS."""
    head, end = int(stored.record["head"]), num_strips(stored) * STRIP.itemsize
    return np.frombuffer(stored.data[:end], STRIP), stored.data[end:head], stored.data[head:]


def stored_jpeg(stored: Stored) -> bytes:
    """The complete JPEG of STRIPS."""
    _, header, scan = head_of(stored)
    return header + scan + b"\xff\xd9"


def decode(data: bytes) -> np.ndarray:
    """Return a copy of the pixels of an encoded image, by the decode contract."""
    return ImageDecoder(ImagePipeline()).full(data).copy()


def stored_pixels(stored: Stored) -> np.ndarray:
    """The whole image, uint8 [height, width, 3]; a JPEG must decode without a warning."""
    record = stored.record
    if record["kind"] == STRIPS:
        return simplejpeg.decode_jpeg(stored_jpeg(stored), "RGB", strict=True)
    if record["kind"] == FILE:
        return decode(stored.data)
    pixels = np.frombuffer(stored.data, np.uint8, offset=int(record["head"]))
    return pixels.reshape(int(record["height"]), int(record["width"]), 3)


def has_images_of(cache: Hdf5Cache, source: Source) -> bool:
    """Return whether a lossless cache serves the source's pixels, and the source's bytes for unchanged files."""
    found = [(cache.read(index), source.read(index)) for index in range(len(source))]
    return len(cache) == len(source) and all(
        one == other if kind == FILE else np.array_equal(decode(one), decode(other))
        for kind, (one, other) in zip(cache.records["kind"], found, strict=True)
    )
