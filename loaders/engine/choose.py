"""Chooses between worker threads and worker processes."""

from __future__ import annotations

import numpy as np

from penstock.loaders.engine.native_rows import native_rows
from penstock.loaders.engine.process_engine import ProcessEngine, ProcessOptions, process_needs
from penstock.loaders.engine.producer_settings import ProducerSettings
from penstock.loaders.engine.slot_needs import thread_needs
from penstock.loaders.engine.thread_engine import ThreadEngine
from penstock.loaders.stream.engine_contract import Engine
from penstock.loaders.workers.needs import Needs

_LOOKED_AT = 16  # images, spread over the data set
_NEARLY_ALL = 0.75  # of them the native library must take: the others hold the interpreter lock now and then


def open_engine(name: str, settings: ProducerSettings, options: ProcessOptions) -> Engine:
    """Return the engine of backend `name` that `options` ask for."""
    if options.has_processes and not (options.workers_are == "auto" and suits_threads(settings, options)):
        return ProcessEngine(name, settings, options)
    return ThreadEngine(name, settings, options)


def suits_threads(settings: ProducerSettings, options: ProcessOptions) -> bool:
    """Say whether the native library makes nearly all images of the source, and processes were not asked for."""
    native = native_rows(settings.source, settings.pipeline, settings.decoder)
    if native is None or options.start_method != "forkserver":
        return False
    count = min(_LOOKED_AT, len(settings.source))
    return native.takes(np.arange(count) * len(settings.source) // count) >= _NEARLY_ALL * count


def needs_of(options: ProcessOptions, batch_size: int, size: tuple[int, int]) -> Needs:
    """Return what the engine that `options` ask for takes at most for batches of `size` (height, width)."""
    if options.has_processes:
        return process_needs(options, batch_size, size)
    return thread_needs(max(1, options.num_workers * options.prefetch), batch_size, size)
