"""Checks the data before a run: its file system, its read rate, and the images of a sample."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.bench.checks.doctor_folders import file_system_of, is_remote
from penstock.bench.checks.finding import DoctorSettings, Finding, State
from penstock.bench.probe.ceilings.read import ReadCeiling, bytes_an_image
from penstock.bench.probe.ceilings.remote_data import has_remote_samples
from penstock.bench.probe.ceilings.store import StoreCeiling
from penstock.bench.probe.data.training_folder import training_folder
from penstock.bench.record.clock import Stopwatch
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.sources.contract import Source, is_fetching
from penstock.loaders.data.sources.data import find_places
from penstock.loaders.front.open_source import open_source
from penstock.loaders.make.sample_reader import SampleReader
from penstock.pipelines.errors import LoaderError, hide_secrets, printable
from penstock.pipelines.sample.decode import ImageDecoder

_SAMPLE = 256
_LOOK_S = 2.0
_READ_S = 0.4
_FETCH_S = 1.0
_SLOW_REQUEST_S = 0.2
_HUGE = 20_000_000  # pixels: about 100 ms of decoding
_SUFFIXES = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".bmp": "BMP", ".gif": "GIF"}


def data_findings(settings: DoctorSettings, data: str) -> Iterator[Finding]:
    """Yield the findings on `data` and on the cache in the settings."""
    folder = training_folder(data)
    for name, path in (("data", folder), ("cache", settings.cache)):
        if path is None or (name == "cache" and not os.path.exists(path)):  # a cache is built on first use
            continue
        caught: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                source = open_source(path, **(settings.data_options if name == "data" else {}))
        except (LoaderError, ValueError) as error:
            cause, fix = (error.cause, error.fix) if isinstance(error, LoaderError) else (str(error), "see --help")
            named = hide_secrets(str(path)) if is_url(os.fsencode(path)) else printable(os.fsencode(path))
            yield Finding(name, "fail", f"{named}: {cause}", fix)
            continue
        yield opened(name, source, settings, [str(each.message) for each in caught])
        if has_remote_samples(source):
            yield remote_speed(name, source, settings.batch_size)
        else:
            yield file_system(name, path)
            yield read_speed(name, source, settings)
        yield odd_files(name, source, settings)


def opened(name: str, source: Source, settings: DoctorSettings, warned: Sequence[str]) -> Finding:
    """Describe the data; missing files are a failure if bad samples are, and each of `warned` is a warning."""
    text, missing = source.describe(), count_missing(source, np.arange(len(source), dtype=np.int64))
    fix = "see these warnings"
    if missing:
        fix = "restore the files, or remove their rows (on_bad_sample='replace' serves other samples instead)"
    if not missing and not warned:
        return Finding(name, "ok", text)
    state: State = "fail" if missing and settings.on_bad_sample == "raise" else "warn"
    lost = [f"{missing:,} of {len(source):,} files are missing"] if missing and not warned else []
    return Finding(name, state, "; ".join([text, *lost, *warned]), fix)


def count_missing(source: Source, indices: npt.NDArray[np.int64]) -> int:
    """Count the files of samples `indices` that a source lists although they are missing."""
    places: Iterator[tuple[Any, Any]] = find_places(source, indices)
    return sum(whole.count_missing(inner) for whole, inner in places if hasattr(whole, "count_missing"))


def file_system(name: str, path: str | Path) -> Finding:
    """Report whether the data is on a local disk, a network, FUSE or an overlay."""
    kind, title = file_system_of(path), f"{name}: file system"
    if is_remote(kind):
        fix = "copy the data to a local disk, or build a cache there: penstock cache build DATA /local/train.h5"
        return Finding(title, "warn", f"{kind}: reads come over a network or through FUSE", fix)
    if kind == "overlay":
        return Finding(title, "warn", "overlay: the data is in a container's layers", "mount it: docker -v DATA:DATA")
    return Finding(title, "ok", kind)


def read_speed(name: str, source: Source, settings: DoctorSettings) -> Finding:
    """Measure how fast one thread reads a sample, from the page cache and from storage."""
    reading, title = ReadCeiling(source, settings.pipeline, 0), f"{name}: reading"
    if not reading.possible:
        return Finding(title, "warn", "none of the sample can be read", "see the next line")
    size = bytes_an_image(source) or 0
    warm = reading.warm(_READ_S).median
    text = f"{warm:,.0f} images/s from the page cache ({warm * size / 1e6:,.0f} MB/s)"
    try:
        cold = reading.cold(_READ_S).median
    except ValueError as error:
        return Finding(title, "ok", f"{text}; from storage unknown: {error}")
    return Finding(title, "ok", f"{text}, {cold:,.0f} from storage ({cold * size / 1e6:,.0f} MB/s), one thread")


def remote_speed(name: str, source: Source, batch_size: int) -> Finding:
    """Measure the time of a request and the rate of a loader's requests; warn if more requests would be faster."""
    store, title = StoreCeiling(source, batch_size, 0), f"{name}: network"
    gains = store.gains_by_more(_FETCH_S)
    time = store.time()
    if time is None:
        return Finding(title, "warn", "none of the sample can be fetched", "see the next line")
    rate = time.requests / time.request_s * time.images_per_request
    text = (
        f"{1e3 * time.first_byte_s:,.0f} ms to the first byte; {rate:,.0f} images/s and {time.bytes_per_s / 1e6:,.1f} "
        f"MB/s with {time.requests} concurrent requests"
    )
    if time.more_bytes_per_s:
        text += f", {time.more_bytes_per_s / 1e6:,.1f} MB/s with {time.more_requests}"
    if gains:
        return Finding(title, "warn", text, f"requests={time.more_requests}, or keep a copy: local_cache=FOLDER")
    if time.first_byte_s > _SLOW_REQUEST_S:
        return Finding(title, "warn", text, "raise requests= and bytes_ahead=, or keep a copy: local_cache=FOLDER")
    return Finding(title, "ok", text)


@dataclass
class SampleSummary:
    """Count the bad and the unusual images of a sample.

    Attributes:
        images: number of images checked.
        bad: error code, with its cause if short -> number of images.
        odd: kind of unusual image -> number of images.
        first: the same keys -> path of the first such image.
    """

    images: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    odd: Counter[str] = field(default_factory=Counter)
    first: dict[str, bytes] = field(default_factory=dict)

    def add(self, kind: str, path: bytes, *, bad: bool = False) -> None:
        """Count one image as bad or unusual."""
        (self.bad if bad else self.odd)[kind] += 1
        self.first.setdefault(kind, path)

    def describe(self) -> str:
        """Return the counts as text, the most frequent first."""
        counts = [*self.bad.most_common(), *self.odd.most_common()]
        return "; ".join(f"{count} {kind}, such as {printable(self.first[kind])}" for kind, count in counts)


def odd_files(name: str, source: Source, settings: DoctorSettings) -> Finding:
    """Decode a sample in full with the loader's decoder; report bad and unusual images."""
    title, sample = f"{name}: a sample", summarise_sample(source, settings)
    lost = sum(sample.bad.values())
    text = (
        f"{sample.images - lost:,} of {sample.images:,} images decoded" if lost else f"{sample.images:,} images decoded"
    )
    if sample.bad:
        state: State = "fail" if settings.on_bad_sample == "raise" else "warn"
        fix = "repair or remove them (the ledger of on_bad_sample='replace' lists all), or pass on_bad_sample='replace'"
        return Finding(title, state, f"{text}; {sample.describe()}", fix)
    if sample.odd:
        fix = "they are loaded; " + "; ".join(advice for kind, advice in _ADVICE.items() if kind in sample.odd)
        return Finding(title, "warn", f"{text}; {sample.describe()}", fix)
    return Finding(title, "ok", f"{text}, none of them unusual")


TURNED, REPAIRED, HUGE, CMYK, MISNAMED, UNUSUAL = (
    "rotated by EXIF",
    "repaired by libjpeg",
    f"above {_HUGE // 1_000_000} megapixels",
    "CMYK",
    "with a suffix of another format",
    "unusual JPEGs",
)
_ADVICE = {
    TURNED: "EXIF is ignored unless the pipeline has exif='apply'",
    REPAIRED: "libjpeg filled in missing data, often grey (on_repaired='replace' leaves them out)",
    HUGE: "a cache with --resize decodes them once: penstock cache build DATA FILE.h5 --resize 512",
    CMYK: "Pillow converts them to RGB",
    MISNAMED: "the first bytes decide, not the name",
    UNUSUAL: "Pillow decodes them, more slowly",
}


def summarise_sample(source: Source, settings: DoctorSettings) -> SampleSummary:
    """Decode up to 256 images, spread over the data, for at most two seconds."""
    reader = SampleReader(source, ImageDecoder(replace(settings.pipeline, exif="apply"), judge=True))
    sample, watch = SampleSummary(), Stopwatch()
    indices = np.linspace(0, len(source), min(_SAMPLE, len(source)), endpoint=False).astype(int)
    np.random.default_rng(0).shuffle(indices)  # a check that is cut short still covers all of the data
    if is_fetching(source):
        source.announce(indices)
    for index in indices.tolist():
        if watch.seconds > _LOOK_S:
            break
        sample.images += 1
        try:
            _look(source, index, reader, sample)
        except LoaderError as error:
            sample.add(
                f"{error.code} ({error.cause})" if len(error.cause) < 60 else error.code, source.path(index), bad=True
            )
    if is_fetching(source):
        source.forget()
    return sample


def _look(source: Source, index: int, reader: SampleReader, sample: SampleSummary) -> None:
    path = source.path(index)
    item = reader.load(index)
    known = item.probe
    if known is None:
        return
    reader.crop(item, (0, 0, known.width, known.height))
    if reader.repair:
        sample.add(REPAIRED, path)
    if known.orientation != 1:
        sample.add(TURNED, path)
    if known.width * known.height > _HUGE:
        sample.add(HUGE, path)
    if getattr(source, "stored_orientation", lambda _: 0)(index):  # a cache stores images in its own form
        return
    if _SUFFIXES.get(os.path.splitext(os.fsdecode(path))[1].lower(), known.format) != known.format:
        sample.add(MISNAMED, path)
    if known.header is not None and known.header.components == 4:
        sample.add(CMYK, path)
    elif known.header is not None and not known.header.ordinary:
        sample.add(UNUSUAL, path)
