"""Size and rate of each kind of cache: small caches of a sample of the data are built, measured and removed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median

import torch

from penstock.bench.probe.data.wrapped_sources import repeat_source, sample_of
from penstock.bench.record.cache_advice import FILES, LOSSLESS, AdviceSettings, CacheAdvice, StorageKind
from penstock.bench.record.environment import describe_environment
from penstock.bench.record.loader_rate import loader_rate
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.sources.contract import Source, is_cache
from penstock.loaders.front.create import create_loader
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
_BATCHES = 50  # batches per epoch, so that the slow first ones are few

OnProgress = Callable[[int, int, str], None]


def advise_cache(
    source: Source, settings: AdviceSettings, progress: OnProgress, encodings: tuple[Encoding, ...] = ENCODINGS
) -> CacheAdvice:
    """Build caches of a sample in all encodings in a temporary folder, measure them in alternation, and remove them.

    progress(done, total, what) is called before each step. Raises ValueError for a source that is a cache, LoaderError
    if the files cannot be served.
    """
    if is_cache(source):
        raise ValueError("the data is already a cache: pass the folder of images that it was built from")
    sample = sample_of(source, settings.sample)
    workers = default_workers() if settings.workers is None else settings.workers
    steps, total = count(), len(encodings) + settings.rounds * (1 + len(encodings))
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="penstock-advise-") as folder:
        kinds: list[tuple[StorageKind, Source]] = [(_storage_kind(FILES, _file_bytes(sample), source, sample), sample)]
        for number, encoding in enumerate(encodings):
            progress(next(steps), total, f"building: {encoding.describe()}")
            path = Path(folder, f"{number}.h5")
            try:
                build_cache(sample, path, encoding, workers=workers)
            except LoaderError as error:
                if error.code != "E-DEPENDENCY":
                    raise
                notes.append(f"{encoding.describe()} was left out: {error.cause}")
                continue
            cache, name = open_cache(path), build_options(encoding) or LOSSLESS
            kind = _storage_kind(name, path.stat().st_size, source, sample, encoding, cache.about[0].psnr_db)
            kinds.append((kind, cache))
        rates: list[list[float]] = [[] for _ in kinds]
        for _ in range(settings.rounds):
            for (kind, stored), measured in zip(kinds, rates, strict=True):
                progress(next(steps), total, kind.name)
                measured.append(_measure_rate(stored, settings, workers))
    return CacheAdvice(
        settings=settings,
        data={"summary": source.describe(), "images": len(source), "sample": len(sample)},
        environment=describe_environment(),
        workers=workers,
        offers=tuple(
            replace(kind, images_per_s=median(found), rounds=tuple(found))
            for (kind, _), found in zip(kinds, rates, strict=True)
        ),
        notes=tuple(notes),
    )


def _file_bytes(sample: Source) -> int:
    """Return the bytes of the sample's files; samples without a file count 0."""
    paths = [sample.path(index) for index in range(len(sample))]
    return sum(os.path.getsize(path) if os.path.exists(path) else 0 for path in paths)


def _storage_kind(
    name: str,
    num_bytes: int,
    source: Source,
    sample: Source,
    encoding: Encoding | None = None,
    psnr_db: float | None = None,
) -> StorageKind:
    """Return a kind of storage, extrapolated from `sample` in `num_bytes` to the whole source, without rates."""
    each = num_bytes / len(sample)
    return StorageKind(
        name=name,
        lossless=encoding is None or encoding.lossless,
        bytes_an_image=each,
        whole_bytes=each * len(source),
        images_per_s=0.0,
        rounds=(),
        psnr_db=psnr_db,
    )


def _measure_rate(stored: Source, settings: AdviceSettings, workers: int) -> float:
    entries = max(len(stored), _BATCHES * settings.batch_size)
    loader = create_loader(
        repeat_source(stored, entries),
        backend="hdf5" if is_cache(stored) else "torch",
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


def build_options(encoding: Encoding) -> str:
    """Return the options of `penstock cache build` for this encoding, "" for the default."""
    kind = None if encoding.kind == "jpeg" else encoding.kind
    given = {"encoding": kind, "resize": encoding.resize, "quality": encoding.quality}
    return " ".join(f"--{name} {value}" for name, value in given.items() if value is not None)
