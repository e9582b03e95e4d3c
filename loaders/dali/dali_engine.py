"""Backend "dali": threads read and plan, DALI decodes, resizes and mirrors, on the GPU or on the CPU."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from penstock.loaders.cache_build.open_or_build import prepare_whole
from penstock.loaders.dali.dali_probe import OURS, REGIONS, WHOLE, chosen_way, warn_of_edges
from penstock.loaders.dali.dali_stage import DaliStage, Finished
from penstock.loaders.dali.dali_tasks import CropTaskProducer
from penstock.loaders.dali.dali_verify import Verifier, mark_unwritten
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.make.batch_planner import BatchPlanner
from penstock.loaders.make.engine_contract import Engine, HostBatch
from penstock.loaders.make.layout import BatchLayout
from penstock.loaders.make.native_rows import suits_native_library
from penstock.loaders.order.cursor import Cursor
from penstock.loaders.run.engine.batch_queue import BatchQueue
from penstock.loaders.run.engine.choose import open_engine as open_own_engine
from penstock.loaders.run.engine.options import WorkerOptions
from penstock.loaders.run.engine.process_engine import ProcessOptions
from penstock.loaders.run.engine.slots import thread_needs
from penstock.loaders.run.engine.thread_engine import ThreadEngine
from penstock.loaders.run.feed.copies import numbered
from penstock.loaders.run.workers.launch import deferred_signals
from penstock.loaders.run.workers.needs import Needs
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import checked_choice, checked_int, checked_number, checked_tuple, set_checked
from penstock.pipelines.sample.dali_graph import GraphSettings, import_dali

_CPUS_A_READER = 4  # reading and planning an image takes a quarter of the time of decoding it on a CPU
_MAX_READERS = 4  # they share one interpreter lock
# Memory measured with photos of 470x400 pixels: of DALI's libraries, and of DALI's buffers per image, as a multiple of
# an output image (DALI decodes whole crops before it resizes them).
DALI_BYTES, DALI_IMAGES = 48 << 20, 8


@dataclass(frozen=True, kw_only=True)
class DaliOptions(WorkerOptions):
    """Options of the dali backend, which do not change the stream. For watchdog_s see WorkerOptions.

    Attributes:
        workers: CPU threads of DALI, None for one per processor, 0 to read in the consumer and give DALI one thread.
        readers: threads that read and plan, None for one per four workers (at most 4).
        prefetch: batches in progress in DALI.
        hw_decoder_load: share of the images, 0 to 1, for a GPU's hardware decoder if there is one.
        preallocate: (width, height) in pixels of the largest image, for the hardware decoder's memory.
        device_memory_padding: bytes of device memory that each nvJPEG thread allocates at the start, None for DALI's
            default.
        host_memory_padding: the same for host memory.
        decode: how windows are decoded: "regions" (DALI, only the window), "whole" (DALI, the whole image), "ours"
            (Penstock, on the CPU), or "auto" for the first of these that works on this GPU, tried once per machine.
        verify: samples per batch to compare with our own decoder, None for 1 on a GPU and 0 on a CPU.
    """

    readers: int | None = None
    prefetch: int = 2
    hw_decoder_load: float = 0.65
    preallocate: tuple[int, int] | None = None
    device_memory_padding: int | None = None
    host_memory_padding: int | None = None
    decode: str = "auto"
    verify: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_choice("decode", self.decode, ("auto", REGIONS, WHOLE, OURS))
        lowest = {"readers": 1, "verify": 0, "device_memory_padding": 0, "host_memory_padding": 0}
        given = {name: getattr(self, name) for name in lowest if getattr(self, name) is not None}
        hint: object = self.preallocate
        if hint is not None:
            hint = checked_tuple("preallocate", hint, ("width", "height"), partial(checked_int, low=0))
        set_checked(
            self,
            **{name: checked_int(name, value, lowest[name]) for name, value in given.items()},
            preallocate=hint,
            hw_decoder_load=checked_number("hw_decoder_load, a share,", self.hw_decoder_load, 0, 1),
        )


def default_readers(workers: int) -> int:
    """Return the number of threads that read and plan for `workers` threads of DALI."""
    return min(_MAX_READERS, -(-workers // _CPUS_A_READER))


def _thread_counts(options: DaliOptions) -> tuple[int, int, int]:
    """Return DALI's threads, readers, and batches in progress: one per reader, `prefetch` in DALI, one between them."""
    workers = options.num_workers
    readers = options.readers or default_readers(workers)
    return (workers, readers, readers + options.prefetch + 1) if workers else (0, 0, 1)


def needs_of(options: DaliOptions, layout: BatchLayout) -> Needs:
    """Return the needs of the engine for batches of `layout`."""
    own_bytes = DALI_BYTES + DALI_IMAGES * sum(part.row_bytes for part in layout.images) * layout.batch_size
    return thread_needs(_thread_counts(options)[2], layout, own_bytes)


def prepare_source(
    source: Source, cache: str | os.PathLike[str] | None = None, encoding: Encoding | None = None
) -> Source:
    """Return `source` itself, or the result of prepare_whole if a cache is requested."""
    return source if cache is None and encoding is None else prepare_whole(source, cache, encoding)


def _run_stage(queue: BatchQueue, stage: DaliStage, finished: deque[Finished], depth: int) -> None:
    """Keep `depth` batches in progress in DALI until the queue is closed. This is the function of DALI's thread."""
    while not queue.closed:
        while len(stage) < depth and (produced := queue.take(wait=not len(stage))) is not None:
            stage.send(produced)
        if len(stage):
            done = stage.receive()
            with queue.changed:
                if queue.is_wanted(done.produced.item):
                    finished.append(done)
                else:
                    queue.recycler.give_back(done.produced.item.slot)
                queue.changed.notify_all()
    stage.close()
    finished.clear()


def open_engine(planner: BatchPlanner, options: DaliOptions) -> Engine:
    """Return the engine for the decoding in `options`, or for "auto" on a GPU, the decoding that works there."""
    device, way = torch.device(planner.device), options.decode
    if not planner.is_plain:
        way = OURS
    if way == "auto":
        import_dali()
        way = chosen_way(numbered(device)) if device.type == "cuda" else REGIONS
    elif way == REGIONS and device.type == "cuda":
        warn_of_edges()
    if way != OURS:
        return DaliEngine(planner, replace(options, decode=way))
    own = ProcessOptions(workers=options.workers, prefetch=options.prefetch, watchdog_s=options.watchdog_s)
    return open_own_engine(DaliEngine.name, planner, own)


_open_engines: weakref.WeakSet[DaliEngine] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open_engines.clear)  # DALI's threads belong to the parent


def _close_engines() -> None:
    for engine in list(_open_engines):
        engine.close()


class DaliEngine:
    """An Engine in which DALI decodes the images.

    It owns a thread engine that makes batches of crop tasks, and finishes these in DALI:

        readers' threads -> Produced with CropTasks -> DALI's thread -> Finished -> consumer -> HostBatch

    Another thread compares some of DALI's images. With workers=0 the consumer does all of this. Raises
    LoaderError E-DEPENDENCY if DALI is not installed.
    """

    name = "dali"

    def __init__(self, planner: BatchPlanner, options: DaliOptions) -> None:
        import_dali()
        workers, self._num_readers, ahead = _thread_counts(options)
        self._threads_of_dali = max(1, workers)
        self._reads_natively = suits_native_library(planner.source, planner.pipeline, planner.decoder)
        own_bytes = needs_of(options, planner.largest_layout).own_bytes
        planner = replace(planner, consumer_bytes=planner.consumer_bytes + own_bytes)
        self._planner, self._options = planner, options
        reading = WorkerOptions(workers=self._num_readers, prefetch=1, watchdog_s=options.watchdog_s)
        self._readers = ThreadEngine(self.name, planner, reading, ahead=ahead, make_producer=CropTaskProducer)
        self._stage: DaliStage | None = None
        per_batch = (torch.device(planner.device).type != "cpu") if options.verify is None else options.verify
        self._verifier = Verifier(planner, int(per_batch)) if per_batch else None
        self._finished: deque[Finished] = deque()  # in stream order; changed under the lock of the readers' queue
        # At exit it is closed before DALI, already imported, shuts down the pipelines that it uses.
        atexit.unregister(_close_engines)
        atexit.register(_close_engines)
        _open_engines.add(self)

    def seek(self, cursor: Cursor) -> None:
        """Make `cursor` the next batch, as Engine.seek; the first call starts the threads."""
        with deferred_signals() if self._stage is None else contextlib.nullcontext():
            self._readers.seek(cursor)
            queue = self._readers.queue
            assert queue is not None
            if self._stage is None:
                self._start(queue)
        with queue.changed:
            while self._finished and not queue.is_wanted(self._finished[0].produced.item):
                queue.recycler.give_back(self._finished.popleft().produced.item.slot)

    def _start(self, queue: BatchQueue) -> None:
        again = partial(queue.maker, self._num_readers)
        layout_at = self._planner.layout
        self._stage = DaliStage(self._graph_settings(), queue.slots, again, layout_at, verifier=self._verifier)
        if self._num_readers:
            run = partial(_run_stage, queue, self._stage, self._finished, self._options.prefetch)
            jobs: dict[str, Callable[[], None]] = {"penstock-dali": run}
            if self._verifier is not None:
                jobs["penstock-verify"] = partial(self._verifier.run, queue)
            self._readers.run(jobs)

    def _graph_settings(self) -> GraphSettings:
        planner, options, device = self._planner, self._options, torch.device(self._planner.device)
        return GraphSettings(
            size=planner.pipeline.output_size,
            batch_size=planner.schedule.batch_size,
            threads=self._threads_of_dali,
            depth=options.prefetch if self._num_readers else 1,
            device_id=numbered(device).index if device.type == "cuda" else None,
            whole=options.decode == WHOLE,
            hw_decoder_load=options.hw_decoder_load,
            preallocate=options.preallocate or (0, 0),
            device_memory_padding=options.device_memory_padding,
            host_memory_padding=options.host_memory_padding,
        )

    def next(self) -> HostBatch:
        done = self._readers.wait_for(self._take) if self._num_readers else self._make()
        try:
            batch = self._readers.deliver(*done)
            misread = self._verifier.take_wrong() if self._verifier is not None else ()
            return replace(batch, misread=misread, when_read=mark_unwritten if batch.resident else None)
        except LoaderError:
            self.close()
            raise

    def _take(self) -> Finished | None:
        return self._finished.popleft() if self._finished else None

    def _make(self) -> Finished:
        produced, stage = self._readers.take(), self._stage
        assert stage is not None
        try:
            stage.send(produced)
            done = stage.receive()
            if self._verifier is not None:
                self._verifier.compare()
            return done
        except BaseException:  # Ctrl-C
            stage.close()
            self._readers.take_back(produced.item)
            raise

    def ready(self) -> int:
        return len(self._finished)

    def describe(self) -> dict[str, object]:
        options, device = self._options, torch.device(self._planner.device)
        about: dict[str, object] = {
            "backend": self.name,
            "workers": self._threads_of_dali if self._num_readers else 0,
            "readers": self._num_readers,
            "prefetch": options.prefetch,
            "workers_are": "threads",
            "readers_are": "native" if self._reads_natively else "Python",
            "decodes_on": device.type,
            "dali": import_dali().__version__,
            "batches_refused": self._stage.refused if self._stage is not None else 0,
            "decodes": options.decode if options.decode != "auto" else REGIONS,
        }
        if self._verifier is not None:
            about |= self._verifier.describe()
        return about if device.type == "cpu" else {**about, "hw_decoder_load": options.hw_decoder_load}

    def close(self) -> None:
        self._readers.close()
        if self._verifier is not None:
            self._verifier.warn_of_the_rest()
        if not self._num_readers and self._stage is not None:
            self._stage.close()
