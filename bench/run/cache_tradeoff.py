"""The cache trade-off as a part of a benchmark's record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.bench.record.cache_kinds import AdviceSettings
from penstock.bench.record.record import BenchRecord
from penstock.bench.run.cache_kinds import advise_cache
from penstock.loaders.sources.contract import Source, WindowSource
from penstock.pipelines.errors import LoaderError

_MAX_SECONDS = 2.0  # six ways of storing are told apart in less time than a ceiling is measured in


def wants_tradeoff(source: Source, asked: bool | None, *, default: bool) -> bool:
    """Whether to try the caches of `source`: as asked for, or by default where it is none itself.

    Raises ValueError if it was asked for of a cache.
    """
    cached = isinstance(source, WindowSource)
    if asked and cached:
        raise ValueError("--cache-tradeoff tries caches of a folder of images, and this is a cache already")
    return asked if asked is not None else default and not cached


def with_cache_tradeoff(source: Source, record: BenchRecord, progress: Callable[[int, int, str], None]) -> BenchRecord:
    """The record with what each kind of cache of a sample of `source` takes and gives; a note where none can be tried.

    progress(done, total, what) is called before each step.
    """
    wanted = record.settings
    settings = AdviceSettings(
        size=wanted.size,
        batch_size=wanted.batch_size,
        workers=record.workers,
        seconds=min(wanted.seconds, _MAX_SECONDS),
        rounds=wanted.rounds,
        seed=wanted.seed,
    )
    try:
        return replace(record, cache=advise_cache(source, settings, progress))
    except LoaderError as error:  # what was measured before is not lost to a full disk
        return replace(record, notes=(*record.notes, f"the cache trade-off was left out: {error.cause}"))
