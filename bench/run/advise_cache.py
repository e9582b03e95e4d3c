"""What each kind of cache would cost and give: small caches of a sample of the data, built, measured, removed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median

import torch

from penstock.bench.data.wrapped_sources import RepeatedSource, SampledSource
from penstock.bench.measure.environment import describe_environment
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.record.bench_record import BenchRecord
from penstock.bench.record.cache_advice import FILES, LOSSLESS, AdviceSettings, CacheAdvice, StorageKind
from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache.hdf5_cache import open_cache
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.create import create_loader
from penstock.loaders.sources.contract import Source, is_cache
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import imagenet_train

ENCODINGS = (
    Encoding(),
    Encoding(resize=500, quality=90),
    Encoding(resize=400, quality=90),
    Encoding(resize=256, quality=90),
    Encoding(kind="raw", resize=256),
)
_BATCHES = 50  # of an epoch, so that few of them are the slow first ones
_MAX_ROUNDS = 3
_MAX_SECONDS = 2.0  # in a benchmark: six ways of storing differ enough to be seen in less time than a ceiling

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class _Stored:
    """Hold one way of storing the sample, ready to be served.

    Attributes:
        name: as the record calls it.
        encoding: of the cache; None for the files.
        source: what serves it.
        backend: that reads it.
        num_bytes: of the sample on the disk.
        psnr_db: of a lossy cache, as its build reports it.
    """

    name: str
    encoding: Encoding | None
    source: Source
    backend: str
    num_bytes: int
    psnr_db: float | None


def advise_cache(
    source: Source, settings: AdviceSettings, progress: OnProgress, encodings: tuple[Encoding, ...] = ENCODINGS
) -> CacheAdvice:
    """Build a cache of a sample in each encoding in a temporary folder, measure all, alternating, and remove them.

    progress(done, total, what) is called before each step. Raises ValueError for a source that is a cache, LoaderError
    where the files cannot be served.
    """
    if is_cache(source):
        raise ValueError("the data are a cache already: pass the folder of images that it was built from")
    sample = SampledSource(source, settings.sample)
    workers = default_workers() if settings.workers is None else settings.workers
    steps, total = count(), len(encodings) + settings.rounds * (1 + len(encodings))
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-advise-") as folder:
        stored = [_Stored(FILES, None, sample, "torch", _file_bytes(sample), None)]
        for number, encoding in enumerate(encodings):
            progress(next(steps), total, f"building: {encoding.describe()}")
            try:
                stored.append(_build(sample, encoding, Path(folder, f"{number}.h5"), workers))
            except LoaderError as error:
                if error.code != "E-DEPENDENCY":
                    raise
                notes.append(f"{encoding.describe()} was left out: {error.cause}")
        rates: list[list[float]] = [[] for _ in stored]
        for _ in range(settings.rounds):
            for each, measured in zip(stored, rates, strict=True):
                progress(next(steps), total, each.name)
                measured.append(_measure_rate(each, settings, workers))
        offers = [
            _describe_offer(each, found, len(sample), len(source)) for each, found in zip(stored, rates, strict=True)
        ]
    return CacheAdvice(
        settings=settings,
        data={"summary": source.describe(), "images": len(source), "sample": len(sample)},
        environment=describe_environment(),
        workers=workers,
        offers=tuple(offers),
        notes=tuple(notes),
    )


def wants_cache_kinds(source: Source, asked: bool | None, *, default: bool) -> bool:
    """Return whether a benchmark tries the caches of `source`: as asked for, or `default` where it is none itself.

    Raises ValueError if it was asked for of a cache.
    """
    cached = is_cache(source)
    if asked and cached:
        raise ValueError("--cache-tradeoff needs a folder of images, and the data are a cache already")
    return asked if asked is not None else default and not cached


def with_cache_kinds(source: Source, record: BenchRecord, progress: OnProgress) -> BenchRecord:
    """Return the record with what each kind of cache of `source` takes and gives; a note where none can be tried."""
    wanted = record.settings
    settings = AdviceSettings(
        size=wanted.size,
        batch_size=wanted.batch_size,
        workers=record.workers,
        seconds=min(wanted.seconds, _MAX_SECONDS),
        rounds=int(min(_MAX_ROUNDS, wanted.most_rounds)),
        seed=wanted.seed,
    )
    try:
        return replace(record, cache=advise_cache(source, settings, progress))
    except LoaderError as error:  # what was measured before is not lost to a full disk
        return replace(record, notes=(*record.notes, f"the cache trade-off was left out: {error.cause}"))


def _file_bytes(sample: SampledSource) -> int:
    """Return the bytes of the sample's files; 0 for what lies in none."""
    paths = [sample.path(index) for index in range(len(sample))]
    return sum(os.path.getsize(path) if os.path.exists(path) else 0 for path in paths)


def _build(sample: SampledSource, encoding: Encoding, path: Path, workers: int) -> _Stored:
    build_cache(sample, path, encoding, workers=workers)
    cache = open_cache(path)
    return _Stored(
        build_options(encoding) or LOSSLESS, encoding, cache, "hdf5", path.stat().st_size, cache.about[0].psnr_db
    )


def _measure_rate(stored: _Stored, settings: AdviceSettings, workers: int) -> float:
    entries = max(len(stored.source), _BATCHES * settings.batch_size)
    loader = create_loader(
        RepeatedSource(stored.source, entries),
        backend=stored.backend,
        pipeline=imagenet_train(settings.size),
        batch_size=settings.batch_size,
        device="cpu",
        dtype=torch.uint8,
        seed=settings.seed,
        workers=workers,
        on_bad_sample="replace",
    )
    with closing(loader):
        return loader_rate(loader, seconds=settings.seconds).median


def _describe_offer(stored: _Stored, rates: list[float], sample: int, images: int) -> StorageKind:
    each = stored.num_bytes / sample
    return StorageKind(
        name=stored.name,
        lossless=stored.encoding is None or stored.encoding.lossless,
        bytes_an_image=each,
        whole_bytes=each * images,
        images_per_s=median(rates),
        rounds=tuple(rates),
        psnr_db=stored.psnr_db,
    )


def build_options(encoding: Encoding) -> str:
    """Return the options of `penstock cache build` for this encoding, "" for the default one."""
    kind = None if encoding.kind == "jpeg" else encoding.kind
    given = {"encoding": kind, "resize": encoding.resize, "quality": encoding.quality}
    return " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
