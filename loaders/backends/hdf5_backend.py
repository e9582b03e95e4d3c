"""Backend "hdf5": processes or threads read the crops out of a cache file."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loaders.cache_build.for_source import SOURCE_OPTIONS as SOURCE_OPTIONS
from penstock.loaders.cache_build.for_source import prepare_source as prepare_source
from penstock.loaders.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.engine.producer import ProducerSettings
from penstock.loaders.engine.slot_needs import thread_needs
from penstock.loaders.engine.thread_engine import ThreadEngine
from penstock.loaders.stream.contract import Engine
from penstock.loaders.system.needs import Needs

KINDS = ("processes", "threads")


@dataclass(frozen=True, kw_only=True)
class Hdf5Options(ProcessOptions):
    """Say how the hdf5 backend runs; ProcessOptions and WorkerOptions hold the rest.

    Attributes:
        workers_are: "processes", or "threads", which start at once and take less memory but share one interpreter
            lock: with two of them it costs 15 % of the images/s of JPEGs and 45 % of those of raw pixels.
    """

    workers_are: str = "processes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers_are not in KINDS:
            raise ValueError(f"workers_are is {' or '.join(KINDS)}, not {self.workers_are!r}")

    @property
    def has_processes(self) -> bool:
        """Say whether there are worker processes, not threads or the consumer alone."""
        return self.workers_are == "processes" and self.num_workers > 0


def needs_of(options: Hdf5Options, batch_size: int, size: tuple[int, int]) -> Needs:
    """Return what the engine that `options` ask for takes for batches of `size` (height, width)."""
    if options.has_processes:
        return process_needs(options, batch_size, size)
    return thread_needs(max(1, options.num_workers * options.prefetch), batch_size, size)


def Hdf5Engine(settings: ProducerSettings, options: Hdf5Options) -> Engine:
    """Return the engine that `options` ask for; a function in the place of a class, as create_loader calls it."""
    if options.has_processes:
        return ProcessEngine("hdf5", settings, options)
    return ThreadEngine("hdf5", settings, options)
