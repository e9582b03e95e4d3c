"""What each kind of cache would cost and give: small caches of a sample of the data, built, measured, removed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

import torch

from penstock.bench.data.sampled_source import SampledSource
from penstock.bench.data.wrapped_sources import repeated
from penstock.bench.measure.environment import describe_environment
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.record.cache_kinds import FILES, LOSSLESS, AdviceSettings, CacheAdvice, StorageKind
from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache.hdf5_cache import open_cache
from penstock.loaders.cache_build.build_set import build_cache
from penstock.loaders.create import create_loader
from penstock.loaders.sources.contract import Source, WindowSource
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


@dataclass(frozen=True)
class _Stored:
    """Something that can be served: its name, its encoding, its source, the backend, bytes on disk of the sample."""

    name: str
    encoding: Encoding | None
    source: Source
    backend: str
    num_bytes: int
    psnr_db: float | None


def advise_cache(
    source: Source,
    settings: AdviceSettings,
    progress: Callable[[int, int, str], None],
    encodings: tuple[Encoding, ...] = ENCODINGS,
) -> CacheAdvice:
    """Builds a cache of a sample in each encoding in a temporary folder, measures all in turn, removes them.

    progress(done, total, what) is called before each step. Raises ValueError for a source that is a cache, LoaderError
    where the files cannot be served.
    """
    if isinstance(source, WindowSource):
        raise ValueError("this is a cache already: give the folder of images that it was built from")
    sample = SampledSource(source, settings.sample)
    workers = default_workers() if settings.workers is None else settings.workers
    steps, total = count(), len(encodings) + settings.rounds * (1 + len(encodings))
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-advise-") as folder:
        stored = [_Stored(FILES, None, sample, "torch", _file_bytes(sample), None)]
        for number, encoding in enumerate(encodings):
            progress(next(steps), total, f"building: {encoding.describe()}")
            try:
                stored.append(_built(sample, encoding, Path(folder, f"{number}.h5"), workers))
            except LoaderError as error:
                if error.code != "E-DEPENDENCY":
                    raise
                notes.append(f"{encoding.describe()} was left out: {error.cause}")
        rates: list[list[float]] = [[] for _ in stored]
        for _ in range(settings.rounds):
            for each, measured in zip(stored, rates, strict=True):
                progress(next(steps), total, each.name)
                measured.append(_rate(each, settings, workers))
        offers = [_offer(each, found, len(sample), len(source)) for each, found in zip(stored, rates, strict=True)]
    return CacheAdvice(
        settings=settings,
        data={"summary": source.describe(), "images": len(source), "sample": len(sample)},
        environment=describe_environment(),
        workers=workers,
        offers=tuple(offers),
        notes=tuple(notes),
    )


def _file_bytes(sample: SampledSource) -> int:
    """Of the files; of a source without files, of what it hands out."""
    paths = [sample.path(index) for index in range(len(sample))]
    return sum(os.path.getsize(path) if os.path.exists(path) else 0 for path in paths)


def _built(sample: SampledSource, encoding: Encoding, path: Path, workers: int) -> _Stored:
    build_cache(sample, path, encoding, workers=workers)
    cache = open_cache(path)
    return _Stored(
        build_options(encoding) or LOSSLESS, encoding, cache, "hdf5", path.stat().st_size, cache.about[0].psnr_db
    )


def _rate(stored: _Stored, settings: AdviceSettings, workers: int) -> float:
    entries = max(len(stored.source), _BATCHES * settings.batch_size)
    loader = create_loader(
        repeated(stored.source, entries),
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


def _offer(stored: _Stored, rates: list[float], sample: int, images: int) -> StorageKind:
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
    """The options of `penstock cache build` for this encoding, "" for the default one."""
    kind = None if encoding.kind == "jpeg" else encoding.kind
    given = {"encoding": kind, "resize": encoding.resize, "quality": encoding.quality}
    return " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
