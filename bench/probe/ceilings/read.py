"""Read ceilings: a sample of the data read by one thread from page cache and storage, and by many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, cycle, starmap
from typing import NamedTuple

import numpy as np

from penstock.bench.probe.ceilings.decode import MAX_SAMPLES
from penstock.bench.probe.data.wrapped_sources import each_once
from penstock.bench.record.clock import Rate, Stopwatch, measure_rate
from penstock.bench.record.resources import storage_bytes
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache
from penstock.loaders.data.cache.hdf5_layout import read_layout
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.sources.contract import Source, is_cache
from penstock.loaders.data.sources.data import Data
from penstock.loaders.make.layout import image_layout
from penstock.loaders.make.native_rows import native_rows, plan_images
from penstock.loaders.system.machine import available_cpus, many_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import ImagePipeline

_CHUNK = 32  # images read per step, as a batch
_MIN_CHUNKS = 3
_FEW = 16  # images to estimate the mean size from if no index contains it
_ENOUGH = 0.9  # minimum share of the bytes read that storage must have served


class FileRange(NamedTuple):
    """A range of bytes of a file: `num_bytes` from `offset`."""

    path: bytes
    offset: int
    num_bytes: int


class ReadCeiling:
    """Measures how fast up to 256 images, spread over the data, are read.

    Whole images are read; from a cache, the native library reads only the part for a crop. Bad images are left out.
    """

    def __init__(self, source: Source, pipeline: ImagePipeline, seed: int) -> None:
        source = each_once(source)
        self._source, self._pipeline, self._seed = source, pipeline, seed
        self._native = threading.local()
        stride = max(1, len(source) // MAX_SAMPLES)
        self._indices = [index for index in range(0, len(source), stride)[:MAX_SAMPLES] if self._read([index])]

    @property
    def possible(self) -> bool:
        """Return whether there is anything to read; False for arrays in memory and if all images are bad."""
        return bool(self._indices) and (
            is_cache(self._source) or not isinstance(self._source.read(self._indices[0]), np.ndarray)
        )

    def warm(self, seconds: float) -> Rate:
        """Measure images/s from the page cache."""
        numbers = count()

        def read() -> int:
            return self._read([self._indices[next(numbers) % len(self._indices)]])

        return measure_rate(read, seconds=seconds)

    def cold(self, seconds: float) -> Rate:
        """Measure images/s from storage: images are dropped from the page cache outside the measured time.

        Raises ValueError if the bytes did not come from storage (the file system is in memory, or another process
        keeps the pages cached), if the kernel does not count them, or if the images' files are not known.
        """
        ranges = list(file_ranges(self._source, self._indices))
        if not ranges:
            raise ValueError("the positions of the images in their files are unknown")
        images: list[int] = []
        times: list[float] = []
        expected, came, spent = 0, storage_bytes(), Stopwatch()
        parts = [slice(first, first + _CHUNK) for first in range(0, len(ranges), _CHUNK)]
        for part in cycle(parts):
            if part.start == 0:
                drop_cached(ranges)
            expected += sum(found.num_bytes for found in ranges[part])
            watch = Stopwatch()
            images.append(self._read(self._indices[part]))
            times.append(watch.seconds)
            if spent.seconds >= seconds and len(times) >= len(parts[:_MIN_CHUNKS]):
                break
        now = storage_bytes()
        self._back_into_the_page_cache()
        if came is None or now is None:
            raise ValueError("this kernel does not report what is read from storage")
        if now - came < _ENOUGH * expected or not expected:
            raise ValueError(
                f"{expected / 1e6:,.1f} MB were dropped from the page cache, only {(now - came) / 1e6:,.1f} MB were "
                "read from storage again"
            )
        return Rate.from_steps(images, times)

    def many(self, seconds: float) -> Rate:
        """Measure images/s with many reader threads.

        Storage limited by latency scales with the threads; storage limited by bandwidth does not. Images in files are
        dropped from the page cache before each pass, outside the measured time.
        """
        ranges = list(file_ranges(self._source, self._indices))
        times: list[float] = []
        spent = Stopwatch()
        with ThreadPoolExecutor(many_workers(available_cpus())) as pool:
            while not times or spent.seconds < seconds:
                drop_cached(ranges)
                watch = Stopwatch()
                list(pool.map(lambda index: self._read([index]), self._indices))
                times.append(watch.seconds)
        if ranges:
            self._back_into_the_page_cache()
        return Rate.from_steps([len(self._indices)] * len(times), times)

    def _back_into_the_page_cache(self) -> None:
        """Read everything again, because the loader is measured next."""
        for index in self._indices:
            with suppress(LoaderError):
                self._source.read(index)

    def _read(self, indices: list[int]) -> int:
        """Read images together, as a loader does, and return how many of them can be read."""
        left, own = indices, self._native
        if is_cache(self._source) and not hasattr(own, "rows"):
            layout = image_layout((self._pipeline,), 1)
            own.rows, own.plan = (
                native_rows(self._source, self._pipeline, "auto"),
                plan_images((self._pipeline,), self._seed, 0, layout),
            )
        if getattr(own, "rows", None) is not None:
            prepared = own.rows.prepare(np.array(indices, np.int64), np.arange(len(indices)), own.plan)
            left = np.delete(indices, prepared.rows["row"]).tolist()
        num_read = len(indices) - len(left)
        for index in left:
            with suppress(LoaderError):
                self._source.read(index)
                num_read += 1
        return num_read


def file_ranges(source: Source, indices: list[int]) -> Iterator[FileRange]:
    """Yield the byte ranges of images `indices`; nothing for a source that does not know them."""
    if isinstance(source, IndexedSource) and not source.samples.are_objects:
        yield from starmap(FileRange, source.ranges(indices))
    elif isinstance(source, Hdf5Cache):
        payloads: dict[bytes, int] = {}
        for index in indices:
            path = source.path(index).rpartition(b":" + source.name(index))[0]
            if path not in payloads:
                payloads[path] = _payload_offset(path)
            record = source.records[index]
            yield FileRange(path, payloads[path] + int(record["offset"]), int(record["length"]))
    elif isinstance(source, Data):
        for part, inner in source.part_rows(np.array(indices, np.int64)):
            yield from file_ranges(part, inner.tolist())


def _payload_offset(path: bytes) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_layout(fd)["payload"].offset
    finally:
        os.close(fd)


def bytes_an_image(source: Source) -> int | None:
    """Return the mean stored size of an image in bytes; None for arrays. Reads a few images of other sources."""
    source = each_once(source)
    if isinstance(source, Data) and len(source.parts) == 1 and len(source) == len(source.parts[0]):
        return bytes_an_image(source.parts[0])
    if isinstance(source, IndexedSource):
        return source.num_bytes // len(source)
    if isinstance(source, Hdf5Cache):
        return sum(about.payload_bytes for about in source.about) // len(source)
    read: list[int] = []
    for index in range(0, len(source), max(1, len(source) // _FEW)):
        try:
            data = source.read(index)
        except LoaderError:
            continue
        if not isinstance(data, bytes):
            return None
        read.append(len(data))
    return sum(read) // len(read) if read else None


def drop_cached(ranges: list[FileRange]) -> None:
    """Ask the kernel to drop the cached pages of these bytes.

    Neighbours are dropped together: some file systems cache blocks of up to a few MB, which are dropped only as a
    whole.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    for path, offset, num_bytes in _join_ranges(ranges):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            first, end = offset // page * page, -(-(offset + num_bytes) // page) * page
            os.posix_fadvise(fd, first, end - first, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _join_ranges(ranges: list[FileRange]) -> list[FileRange]:
    joined: list[FileRange] = []
    for found in sorted(set(ranges)):
        last = joined[-1] if joined else None
        if last is not None and last.path == found.path and found.offset <= last.offset + last.num_bytes:
            end = max(last.offset + last.num_bytes, found.offset + found.num_bytes)
            joined[-1] = last._replace(num_bytes=end - last.offset)
        else:
            joined.append(found)
    return joined
