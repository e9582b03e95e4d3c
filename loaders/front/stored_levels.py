"""Refuses pipelines with other channels or levels than arrays in memory have, or caches store."""

from __future__ import annotations

import numpy as np

from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import find_whole
from penstock.pipelines.image_types import Levels
from penstock.pipelines.spec import ImagePipeline


def refuse_other_levels(source: Source, pipeline: ImagePipeline, encoding: object = None) -> None:
    """Raise ValueError if arrays or caches behind `source` do not have the channels and levels of the pipeline.

    Files are compared when they are read. encoding: the Encoding of a cache that is not built yet.
    """
    if isinstance(encoding, Encoding):
        _refuse_cache(pipeline, encoding)
    for whole in find_whole(source):
        if isinstance(whole, ArraySource):
            _refuse_array(pipeline, whole.images)
        elif isinstance(whole, Hdf5Cache):
            _refuse_cache(pipeline, whole.about[0].coded)


def _refuse_array(pipeline: ImagePipeline, images: Levels) -> None:
    channels, dtype = images.shape[3], images.dtype
    if channels != pipeline.channels and (pipeline.keeps_channels or channels not in (1, 3)):
        fix = f"pass ImagePipeline(channels={channels}, mean=..., std=...)"
        fix += ", or drop an alpha channel with images[..., :3]" if channels == 4 else ""
        shape = f"[n, h, w, channels] = {list(images.shape)}"
        raise ValueError(
            f"the images have {channels} channels ({shape}), but the pipeline has {pipeline.channels}: {fix}"
        )
    if dtype == np.uint16 and pipeline.depth == 8:
        raise ValueError("images are uint16, but the pipeline has depth=8: pass ImagePipeline(depth=16)")
    if dtype == np.float32 and pipeline.depth != 32:
        raise ValueError(
            f"images must be uint8 from 0 to 255, or uint16, with depth={pipeline.depth}, got {dtype}: pass "
            "ImagePipeline(depth=32, ...), or for values from 0 to 1 (images * 255).round().astype('uint8')"
        )


def _refuse_cache(pipeline: ImagePipeline, coded: Encoding) -> None:
    if coded.keeps_levels or (pipeline.depth == 8 and not pipeline.keeps_channels):
        return
    needs = f"channels={pipeline.channels}" if pipeline.depth == 8 else f"depth={pipeline.depth}"
    raise ValueError(
        f"{needs} needs all channels and bits of the images, but a cache that is {coded.describe()} stores 8 bits of "
        "three channels: use Encoding() or Encoding(kind='array')"
    )
