"""The dali backend: threads read and plan, DALI decodes, resizes and mirrors, on the GPU or on the CPU."""

from __future__ import annotations

import atexit
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from penstock.loaders.backends import hdf5_backend as hdf5_loader
from penstock.loaders.backends.dali_producer import CropProducer
from penstock.loaders.backends.dali_stage import DaliStage
from penstock.loaders.cache.format import Encoding
from penstock.loaders.engine.batch_maker import BatchMaker
from penstock.loaders.engine.producer import Producer, ProducerSettings
from penstock.loaders.engine.slot_needs import thread_needs
from penstock.loaders.engine.slots import BatchSlots, Produced
from penstock.loaders.engine.thread_engine import BatchQueue, ThreadEngine
from penstock.loaders.sources.contract import Source
from penstock.loaders.stream.contract import Cursor
from penstock.loaders.system.machine import default_workers
from penstock.loaders.system.needs import DALI_BYTES, DALI_IMAGES, Needs
from penstock.loaders.system.recycled_memory import Recycler
from penstock.loaders.workers.processes import DEFAULT_WATCHDOG_S
from penstock.pipelines.sample.dali_graph import GraphSettings, import_dali

_CPUS_A_READER = 4  # reading and planning an image takes a quarter of the time of decoding it on a CPU
_MAX_READERS = 4  # they share one interpreter lock


@dataclass(frozen=True, kw_only=True)
class DaliOptions:
    """How the dali backend runs; none of it changes the stream.

    workers: DALI's CPU threads, None for one a processor, 0 to read in the consumer and give DALI one. readers: threads
    that read and plan, None for one for every four workers (at most 4). prefetch: batches that DALI has under way.
    watchdog_s: seconds without any progress before a batch that is waited for is given up. On a GPU:
    hw_decoder_load, the share of the images that the hardware decoder takes where there is one; preallocate, (width,
    height) of the largest image in pixels, for its memory; device_memory_padding and host_memory_padding, bytes that
    each thread of nvJPEG allocates at the start (None for DALI's own figures).
    """

    workers: int | None = None
    readers: int | None = None
    prefetch: int = 2
    watchdog_s: float = DEFAULT_WATCHDOG_S
    hw_decoder_load: float = 0.65
    preallocate: tuple[int, int] | None = None
    device_memory_padding: int | None = None
    host_memory_padding: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers is at least 0, not {self.workers}")
        if self.readers is not None and self.readers < 1:
            raise ValueError(f"readers is at least 1, not {self.readers}")
        if self.prefetch < 1:
            raise ValueError(f"prefetch is at least 1, not {self.prefetch}")
        if self.watchdog_s <= 0:
            raise ValueError(f"watchdog_s is above 0 seconds, not {self.watchdog_s}")
        if not 0 <= self.hw_decoder_load <= 1:
            raise ValueError(f"hw_decoder_load is a share from 0 to 1, not {self.hw_decoder_load}")
        hint = self.preallocate
        if hint is not None and not (isinstance(hint, (tuple, list)) and len(hint) == 2 and min(hint) >= 0):
            raise ValueError(f"preallocate is (width, height) in pixels, not {self.preallocate!r}")
        for name in ("device_memory_padding", "host_memory_padding"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} is at least 0 bytes, not {getattr(self, name)}")


def default_readers(workers: int) -> int:
    """Threads that read and plan for so many of DALI's."""
    return min(_MAX_READERS, -(-workers // _CPUS_A_READER))


def _readers(options: DaliOptions) -> tuple[int, int, int]:
    """(DALI's threads or 0, readers, batches under way: one with each reader, `prefetch` with DALI, one between)."""
    workers = default_workers() if options.workers is None else options.workers
    readers = options.readers or default_readers(workers)
    return (workers, readers, readers + options.prefetch + 1) if workers else (0, 0, 1)


def needs_of(options: DaliOptions, batch_size: int, size: tuple[int, int]) -> Needs:
    """What the engine takes for batches of `size` (height, width)."""
    own_bytes = DALI_BYTES + DALI_IMAGES * 3 * math.prod(size) * batch_size
    return thread_needs(_readers(options)[2], batch_size, size, own_bytes)


SOURCE_OPTIONS = hdf5_loader.SOURCE_OPTIONS


def prepare_source(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """`source` itself, or its cache at `cache`; see hdf5_loader.prepare_source."""
    if cache is None and encoding is None:
        return source
    return hdf5_loader.prepare_source(source, cache, encoding)


class _CropQueue(BatchQueue):
    """Batches wait in `made` for DALI, in `done` for the consumer."""

    def __init__(self, settings: ProducerSettings, slots: BatchSlots, recycler: Recycler, rows: int) -> None:
        super().__init__(settings, slots, recycler, rows)
        self.made: dict[int, Produced] = {}
        self._sent = 0

    def next_made(self, *, wait: bool) -> tuple[int, Produced] | None:
        """The next batch for DALI and its number; None if there is none yet (unless `wait`), or at the end."""
        with self.changed:
            while self._sent not in self.made:
                if self.closed or not wait:
                    return None
                self.changed.wait()
            self._sent += 1
            return self._sent - 1, self.made.pop(self._sent - 1)

    def seek(self, cursor: Cursor) -> None:
        """See BatchQueue.seek."""
        with self.changed:
            super().seek(cursor)
            self._sent = 0


def _maker(settings: ProducerSettings, queue: BatchQueue, worker: int, producer: type[Producer]) -> BatchMaker:
    return BatchMaker(settings, queue.slots, queue.progress, worker, own_process=False, make_producer=producer)


def _run_stage(queue: _CropQueue, stage: DaliStage, depth: int) -> None:
    """What DALI's own thread does: keep `depth` batches under way."""
    while not queue.closed:
        while len(stage) < depth and (work := queue.next_made(wait=not len(stage))) is not None:
            stage.send(*work)
        if len(stage):
            queue.put(*stage.receive(), queue.done)
    stage.close()


_open_engines: weakref.WeakSet[DaliEngine] = weakref.WeakSet()


def _close_at_exit(engine: DaliEngine) -> None:
    """Have `engine` closed before DALI, which is imported by now, shuts its pipelines down under it."""
    atexit.unregister(_close_engines)
    atexit.register(_close_engines)
    _open_engines.add(engine)


def _close_engines() -> None:
    for engine in list(_open_engines):
        engine.close()


class DaliEngine(ThreadEngine):
    """Engine on DALI; see Engine for the methods' contract, DaliOptions for the settings.

    Raises LoaderError E-DEPENDENCY where DALI is not installed.
    """

    def __init__(self, settings: ProducerSettings, options: DaliOptions) -> None:
        import_dali()
        workers, readers, ahead = _readers(options)
        self._threads_of_dali = max(1, workers)
        super().__init__("dali", settings, readers, 1, options.watchdog_s)
        self._options, self._ahead = options, ahead
        self._stage: DaliStage | None = None
        _close_at_exit(self)

    def _graph_settings(self) -> GraphSettings:
        settings, options, device = self._settings, self._options, torch.device(self._settings.device)
        index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
        return GraphSettings(
            size=settings.pipeline.size,
            batch_size=settings.schedule.batch_size,
            threads=self._threads_of_dali,
            depth=options.prefetch if self._workers else 1,
            device_id=index if device.type == "cuda" else None,
            hw_decoder_load=options.hw_decoder_load,
            preallocate=options.preallocate or (0, 0),
            device_memory_padding=options.device_memory_padding,
            host_memory_padding=options.host_memory_padding,
        )

    def _needs(self) -> Needs:
        return needs_of(self._options, self._settings.schedule.batch_size, self._settings.pipeline.size)

    def _new_queue(self, slots: BatchSlots, recycler: Recycler) -> BatchQueue:
        kind = _CropQueue if self._workers else BatchQueue
        queue = kind(self._settings, slots, recycler, self._workers + 1)
        make_again = partial(_maker, self._settings, queue, self._workers)
        self._stage = DaliStage(self._graph_settings(), slots, make_again)
        return queue

    def _new_maker(self, queue: BatchQueue, worker: int) -> BatchMaker:
        return _maker(self._settings, queue, worker, CropProducer)

    def _more_jobs(self, queue: BatchQueue) -> list[tuple[str, Callable[[], None]]]:
        assert isinstance(queue, _CropQueue)
        assert self._stage is not None
        return [("penstock-dali", partial(_run_stage, queue, self._stage, self._options.prefetch))]

    def _completed(self, produced: Produced) -> Produced:
        stage = self._stage
        assert stage is not None
        try:
            stage.send(0, produced)
            return stage.receive()[1]
        except BaseException:  # Ctrl-C
            stage.close()
            raise

    def describe(self) -> dict[str, object]:
        """See Engine.describe."""
        options, device = self._options, torch.device(self._settings.device)
        about: dict[str, object] = {
            "backend": self.name,
            "workers": self._threads_of_dali if self._workers else 0,
            "readers": self._workers,
            "prefetch": options.prefetch,
            "workers_are": "threads",
            "decodes_on": device.type,
            "dali": import_dali().__version__,
            "batches_refused": self._stage.refused if self._stage is not None else 0,
        }
        return about if device.type == "cpu" else {**about, "hw_decoder_load": options.hw_decoder_load}

    def close(self) -> None:
        """See Engine.close."""
        super().close()
        if not self._workers and self._stage is not None:
            self._stage.close()
