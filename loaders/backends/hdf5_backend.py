"""The hdf5 backend: threads or processes that read the crops of a cache file."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loaders.cache_build.for_source import SOURCE_OPTIONS as SOURCE_OPTIONS
from penstock.loaders.cache_build.for_source import prepare_source as prepare_source
from penstock.loaders.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.engine.slot_needs import thread_needs
from penstock.loaders.engine.thread_engine import ThreadEngine
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
