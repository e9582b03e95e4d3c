"""Sizes of all images of a source, read from their headers in threads and saved for later runs."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import SavedColumns, StoredValues, save_columns
from penstock.loaders.data.sources.contract import Source, content_of
from penstock.loaders.data.sources.source_faults import name_sample
from penstock.loaders.make.native_rows import native_rows
from penstock.loaders.make.sample_reader import SampleReader
from penstock.loaders.system.machine import available_cpus
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.loaders.system.saved_columns import load_saved, narrowest
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

_FORMAT = "image sizes 2"
_CHUNK = 1024  # images per task
_MAX_THREADS, _THREADS_PER_CPU = 32, 4  # threads mostly wait for storage


class _Reader:
    """A reader of sizes, for one thread."""

    def __init__(self, source: Source, pipeline: ImagePipeline) -> None:
        self._source = source
        self._native = native_rows(source, pipeline, "auto")
        self._python = SampleReader(source, ImageDecoder(pipeline, "auto"))

    def read(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return width and height of images `samples` (int64 [n]), int64 [n, 2]; 0 for unreadable images."""
        sizes = np.zeros((len(samples), 2), np.int64) if self._native is None else self._native.sizes(samples)
        for row in np.flatnonzero(sizes[:, 0] == 0).tolist():
            try:
                sizes[row] = self.size(int(samples[row]))
            except LoaderError as error:
                if not error.of_sample:
                    raise
        return sizes

    def size(self, sample: int) -> tuple[int, int]:
        """Return width and height of an image. Raises LoaderError with the sample and its path."""
        try:
            loaded = self._python.load(sample)
        except LoaderError as error:
            path = error.path if error.path is not None else name_sample(self._source, sample)
            raise error.locate(sample=sample, path=path) from error.__cause__
        return loaded.width, loaded.height


def read_sizes(
    source: Source, pipeline: ImagePipeline, samples: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int32]:
    """Return width and height of upright images of `source`, int32 [n, 2]; 0 for unreadable images.

    `pipeline` decides whether EXIF is applied, and which sizes are refused. samples: the images; None for all. Raises
    LoaderError for errors that are not specific to a sample.
    """
    samples = np.arange(len(source), dtype=np.int64) if samples is None else samples
    n, own, done = len(samples), threading.local(), 0
    sizes = np.zeros((n, 2), np.int32)

    def read(first: int) -> int:
        if not hasattr(own, "reader"):
            own.reader = _Reader(source, pipeline)
        some = samples[first : first + _CHUNK]
        sizes[first : first + len(some)] = own.reader.read(some)
        return len(some)

    threads = max(1, min(_MAX_THREADS, _THREADS_PER_CPU * available_cpus(), n // _CHUNK))
    with ProgressBar("sizes", show_after_s=SHOW_AFTER_S) as bar, ThreadPoolExecutor(threads) as pool:
        try:
            for count in pool.map(read, range(0, n, _CHUNK)):
                done += count
                bar.show(done, what=f"reading sizes: {done:,} of {n:,} images")
        except BaseException:  # on Ctrl-C, too, do not wait for tasks that have not begun
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return sizes


def refuse_unread(source: Source, pipeline: ImagePipeline, sample: int) -> None:
    """Raise the LoaderError of an image that read_sizes could not read."""
    _Reader(source, pipeline).size(sample)


class ImageSizes(NamedTuple):
    """Widths and heights of all images, uint16 or int32 [n], in pixels; 0 for unreadable images."""

    widths: npt.NDArray[np.integer]
    heights: npt.NDArray[np.integer]


def image_sizes(source: Source, pipeline: ImagePipeline) -> ImageSizes:
    """Return the sizes of all images. They are read by read_sizes once, and saved until the source's content changes.

    Unreadable images are tried again each time, because a storage or permission error may have been fixed.
    """
    content = content_of(source)
    identity = f"{_FORMAT} {content} {len(source)} {pipeline.exif} {pipeline.max_pixels}"
    if pipeline.keeps_channels:  # it accepts other files, or reads them in another way
        identity += f" {pipeline.channels} {pipeline.depth}"
    else:
        pipeline = ImagePipeline(exif=pipeline.exif, max_pixels=pipeline.max_pixels)
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
