"""Checks a cache from end to end: against itself, and against the source that it was built from."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.loaders.cache_build.freshness import source_identity
from penstock.loaders.data.cache.format import FILE, PIXELS, STRIP, STRIPS, Record, crc32
from penstock.loaders.data.cache.hdf5_cache import Hdf5Cache
from penstock.loaders.data.sources.contract import Source, refresh_source, sample_name
from penstock.loaders.system.machine import available_cpus
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.jpeg import strips
from penstock.pipelines.jpeg.header import parse_header

OnProgress = Callable[[int], None]

_KINDS = {FILE: "file", STRIPS: "strips", PIXELS: "pixels"}
_CHUNK_SAMPLES = 32
_GENERAL = ("E-STALE", "E-DEPENDENCY")  # errors of the whole file or of the machine, not of one image


class BadImage(NamedTuple):
    """A damaged sample and the cause."""

    sample: int
    name: bytes
    cause: str


@dataclass(frozen=True)
class CacheReport:
    """The result of a check.

    Attributes:
        samples: number of images.
        num_bytes: number of their stored bytes.
        kinds: file, strips, pixels -> number of images stored this way.
        damaged: images with changed bytes.
    """

    samples: int
    num_bytes: int
    kinds: dict[str, int]
    damaged: list[BadImage]

    @property
    def sound(self) -> bool:
        """Whether no image is damaged."""
        return not self.damaged

    def describe(self, most: int = 20) -> str:
        """Return a summary line, then one line for each of the first `most` damaged images."""
        count = len(self.damaged)
        lines = [f"{self.samples:,} images, {self.num_bytes:,} bytes: {f'{count:,} bad' if count else 'sound'}"]
        lines += [f"  damaged sample={f.sample} name={printable(f.name)}: {f.cause}" for f in self.damaged[:most]]
        return "\n".join(lines + [f"  and {count - most:,} more"] * (count > most))


def verify_cache(cache: Hdf5Cache, *, progress: OnProgress | None = None, workers: int | None = None) -> CacheReport:
    """Check all stored bytes of images and masks by their CRCs, and the layout of each image against its record.

    A damaged sample is a finding, never an error. progress(samples) is called with the number of newly checked samples.
    workers: number of threads, by default one per processor. Raises LoaderError E-STALE if the file is replaced during
    the check.
    """

    def check(index: int) -> str:
        for mask in cache.about[0].pictures:
            cache.mask(mask, index)
        return find_damage(Record._make(cache.records[index].item()), cache.stored(index), len(cache.classes))

    kinds = Counter(cache.records["kind"].tolist())
    num_bytes = int(cache.records["length"].astype(np.int64).sum())
    damaged = _collect(cache, check, progress, workers)
    return CacheReport(len(cache), num_bytes, {name: kinds[kind] for kind, name in _KINDS.items()}, damaged)


def refuse_other_source(cache: Hdf5Cache, source: Source) -> None:
    """Raise LoaderError E-STALE with the difference if the cache was not built from `source`.

    The source must have the same images, labels and classes, and no file modified since.
    """
    now = refresh_source(source)
    content, cause = source_identity(now)["content"], find_difference(cache, now)
    if not cause and any(about.source.get("content") != content for about in cache.about):
        cause = "files of the source were modified since the cache was built"
    if cause:
        raise LoaderError("E-STALE", cause, path=cache.path(0).rpartition(b":")[0])


def find_difference(cache: Hdf5Cache, source: Source) -> str:
    """Return how the source's images, labels or classes differ from those in the cache, in words; "" if they do not."""
    if len(source) != len(cache):
        return f"the source has {len(source):,} images, the cache {len(cache):,}"
    if source.classes != cache.classes:
        at = next(i for i, (a, b) in enumerate(itertools.zip_longest(source.classes, cache.classes)) if a != b)
        names = (printable(classes[at]) if at < len(classes) else "none" for classes in (source.classes, cache.classes))
        return "class {} is called {} in the source, {} in the cache".format(at, *names)
    everything = np.arange(len(cache), dtype=np.int64)
    differ = np.flatnonzero(source.labels(everything) != cache.labels(everything))
    same = all(about.source.get("fingerprint") == source.fingerprint for about in cache.about)
    if not same and hasattr(source, "root"):
        for index in range(len(cache)):
            name, known = sample_name(source, index), cache.name(index)
            if name != known:
                return f"image {index} is {printable(name)} in the source, {printable(known)} in the cache"
    if len(differ):
        return f"{len(differ):,} labels differ, the first at image {differ[0]}"
    return "" if same else "images of the source have changed in size since the cache was built"


def find_damage(record: Record, stored: bytes, num_classes: int) -> str:
    """Return the damage of a sample with the bytes `stored`, in words; "" if there is none."""
    head, rest = stored[: record.head], np.frombuffer(stored, np.uint8)[record.head :]
    if crc32(stored if record.kind == FILE else head, 0) != record.crc:
        return "the CRC of its head differs" if record.kind != FILE else "the CRC of its bytes differs"
    if not 0 <= record.label < num_classes or not 1 <= record.orientation <= 8:
        return f"invalid label {record.label} of {num_classes} classes, or orientation {record.orientation}"
    if record.kind == FILE:
        return "" if record.head == 0 and bool(record.width) == bool(record.height) else "its record is invalid"
    if record.kind == PIXELS:
        row_bytes = 3 * record.width * record.strip_rows
        ends = [*range(row_bytes, len(rest), row_bytes), len(rest)]
        if len(rest) != 3 * record.width * record.height or len(head) != 4 * len(ends):
            return f"its {len(stored):,} bytes do not fit {record.width}x{record.height} pixels"
        return _check_strips(rest, ends, np.frombuffer(head, "<u4").tolist())
    return _find_strip_damage(record, head, rest)


def _find_strip_damage(record: Record, head: bytes, scan: Pixels) -> str:
    sides = (record.width, record.height, record.mcu_width, record.mcu_height)
    geometry = strips.StripGeometry(*sides, record.segment_mcus)
    count = -(-geometry.rows // record.strip_rows)
    if len(head) < count * STRIP.itemsize:
        return f"its head of {len(head)} bytes is too short for {count} strips"
    table, start = np.frombuffer(head[: count * STRIP.itemsize], STRIP), head[count * STRIP.itemsize :]
    ends = table["end"].tolist()
    if found := _check_strips(scan, ends, table["crc"].tolist()):
        return found
    if found := _find_header_fault(start, record, geometry):
        return found
    bounds = np.append(strips.segment_ends(scan), len(scan))
    if len(bounds) != geometry.rows * geometry.segments:
        return f"it has {len(bounds)} segments, but its record declares {geometry.rows * geometry.segments}"
    rows = [*range(record.strip_rows, geometry.rows, record.strip_rows), geometry.rows]
    return "" if bounds[[row * geometry.segments - 1 for row in rows]].tolist() == ends else "its strips end elsewhere"


def _find_header_fault(data: bytes, record: Record, geometry: strips.StripGeometry) -> str:
    """Return how the header of a JPEG differs from its record, in words; "" if it does not."""
    try:
        header = parse_header(data)
    except LoaderError as error:
        return f"its JPEG header: {error.cause}"
    found = (header.width, header.height, *strips.mcu_size(header), strips.restart_interval(data, header))
    if found != geometry or (header.height_offset, header.scan_offset) != (record.height_offset, len(data)):
        return f"its JPEG header declares {found}, its record {tuple(geometry)}"
    return "" if header.ordinary and header.stoppable else "its JPEG is not baseline with a common chroma sampling"


def _check_strips(data: Pixels, ends: list[int], crcs: list[int]) -> str:
    """Return the damage of strips with these ends and running CRCs, in words; "" if there is none."""
    if len(ends) != len(crcs) or not ends or ends[-1] != len(data):
        return f"its {len(crcs)} strips do not cover its {len(data):,} bytes"
    begin = crc = 0
    for number, (end, expected) in enumerate(zip(ends, crcs, strict=True)):
        crc = crc32(data[begin:end], crc)
        if begin >= end or crc != expected:
            return f"the CRC of strip {number} of {len(ends)} differs"
        begin = end
    return ""


def _collect(
    cache: Hdf5Cache, check: Callable[[int], str], progress: OnProgress | None, workers: int | None
) -> list[BadImage]:
    """Return the damaged samples that `check` finds, in order; it is called in threads."""
    stopped = threading.Event()

    def check_chunk(first: int) -> list[tuple[int, str]]:
        last = min(first + _CHUNK_SAMPLES, len(cache))
        return [(index, _run_check(check, index)) for index in range(first, last) if not stopped.is_set()]

    found: list[BadImage] = []
    with ThreadPoolExecutor(workers or available_cpus(), "penstock-verify") as pool:
        try:
            for part in pool.map(check_chunk, range(0, len(cache), _CHUNK_SAMPLES)):
                found += [BadImage(index, cache.name(index), cause) for index, cause in part if cause]
                if progress:
                    progress(len(part))
        except BaseException:
            stopped.set()  # each thread ends after its current read; the end of the pool waits for it
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _run_check(check: Callable[[int], str], index: int) -> str:
    try:
        return check(index)
    except LoaderError as error:
        if error.code in _GENERAL:
            raise
        return f"{error.code}: {error.cause}"
