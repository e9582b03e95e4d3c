"""The hdf5 backend: threads or processes that read the crops of a cache file."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock.loaders.cache.format import Encoding
from penstock.loaders.cache.hdf5_cache import known_cache, open_cache
from penstock.loaders.cache_build.build_set import build_cache
from penstock.loaders.cache_build.progress import BuildDisplay
from penstock.loaders.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.engine.slot_needs import thread_needs
from penstock.loaders.engine.thread_engine import ThreadEngine
from penstock.loaders.sources.contract import Source, WindowSource
from penstock.loaders.stream.contract import Engine
from penstock.loaders.system.machine import default_workers
from penstock.loaders.system.needs import Needs
from penstock.loaders.workers.processes import DEFAULT_WATCHDOG_S

KINDS = ("processes", "threads")


@dataclass(frozen=True, kw_only=True)
class Hdf5Options:
    """How the hdf5 backend runs; none of it changes the stream.

    workers: processes or threads, None for one a processor, 0 to work in the consumer. prefetch: batches ahead for
    each. workers_are: "processes", or "threads", which start at once and take less memory but share one interpreter
    lock: with two of them it costs 15 % of the images/s of JPEGs and 45 % of those of raw pixels. start_method: of
    processes. watchdog_s: seconds of silence before a worker is given up.
    """

    workers: int | None = None
    prefetch: int = 3
    workers_are: str = "processes"
    start_method: str = "forkserver"
    watchdog_s: float = DEFAULT_WATCHDOG_S

    def __post_init__(self) -> None:
        if self.workers_are not in KINDS:
            raise ValueError(f"workers_are is {' or '.join(KINDS)}, not {self.workers_are!r}")
        self.of_processes()

    def of_processes(self) -> ProcessOptions:
        """The same for an engine of processes. Raises ValueError for what neither kind can do."""
        return ProcessOptions(
            workers=self.workers, prefetch=self.prefetch, start_method=self.start_method, watchdog_s=self.watchdog_s
        )


SOURCE_OPTIONS = ("cache", "encoding")  # those of prepare_source


def prepare_source(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """The cache at `cache` that stands for `source`, built with a progress bar if it is not there.

    What is there must be of this source as it is now, and of `encoding` if that is given. Raises ValueError without a
    path for a source that is no cache, LoaderError E-STALE and as build_cache does.
    """
    if encoding is not None and not isinstance(encoding, Encoding):
        raise ValueError(f"encoding is an Encoding, such as Encoding(kind='raw', resize=256), not {encoding!r}")
    if isinstance(source, WindowSource):
        if cache is not None or encoding is not None:
            raise ValueError("the source is a cache already: leave out cache and encoding")
        return source
    if cache is None:
        raise ValueError(
            "backend 'hdf5' reads a cache: pass cache='data.h5' (--cache data.h5), which is built on first use, or the "
            "path of a cache that `penstock cache build` made as the source"
        )
    there = known_cache(cache)
    wanted = encoding or (there.coded if there else Encoding())
    with BuildDisplay(len(source)) as progress:
        build_cache(source, cache, wanted, shards=there.shard[1] if there else 1, progress=progress)
    return open_cache(cache)


def needs_of(options: Hdf5Options, batch_size: int, size: tuple[int, int]) -> Needs:
    """What the engine that `options` ask for takes for batches of `size` (height, width)."""
    workers = default_workers() if options.workers is None else options.workers
    if options.workers_are == "threads" or not workers:
        return thread_needs(max(1, workers * options.prefetch), batch_size, size)
    return process_needs(options.of_processes(), batch_size, size)


def Hdf5Engine(settings: ProducerSettings, options: Hdf5Options) -> Engine:
    """The engine that `options` ask for."""
    workers = default_workers() if options.workers is None else options.workers
    if options.workers_are == "threads" or not workers:
        return ThreadEngine("hdf5", settings, workers, options.prefetch, options.watchdog_s)
    return ProcessEngine("hdf5", settings, options.of_processes())
