"""Decode ceilings: images/s of decoding, resizing or copying to the device on one thread that does nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count, cycle, islice

import numpy as np
import torch

from penstock.bench.probe.ceilings.remote_data import fetched_apart, has_remote_samples
from penstock.bench.probe.ceilings.store import StoreCeiling
from penstock.bench.probe.data.wrapped_sources import FetchedSource
from penstock.bench.record.clock import Rate, Stopwatch, measure_rate
from penstock.loaders.data.sources.contract import Source, is_fetching
from penstock.loaders.make.layout import Slot, image_layout
from penstock.loaders.make.native_rows import native_rows, plan_images, suits_native_library
from penstock.loaders.make.sample_reader import Loaded, SampleReader
from penstock.loaders.run.engine.work_items import BATCH_ROW
from penstock.pipelines.batch.stage import BatchStage
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import INTERPOLATIONS, Pixels, Window
from penstock.pipelines.native.library import native_library
from penstock.pipelines.plan.crops import choose_filters, plan_batch
from penstock.pipelines.sample.decode import JPEG_DECODERS, NATIVE, ImageDecoder, choose_jpeg_decoder
from penstock.pipelines.sample.resize import RESIZERS, write_sample
from penstock.pipelines.spec import ImagePipeline

MAX_SAMPLES = 256  # enough for stable statistics, few enough to hold in memory
_MIN_SAMPLES, _LOAD_S = 64, 1.0  # slow storage: the number that is enough once reading took this many seconds
STEP = 8  # images per step between clock reads: a measurement has at least five steps
MAX_CROPS = 32  # decoded: in a loader, crops are still in the processor's caches


class DecodeCeiling:
    """Measures decoding and resizing of up to 256 files in memory on one thread, with the crops of the real stream.

    A loader cannot be faster than this rate times its CPUs. Bad samples are left out.

    samples: the `loaded` of another decoder's ceiling; None loads them.

    Attributes:
        name: name of the decoder.
        loaded: the samples in random order, so that a short measurement covers all parts of the data.
    """

    def __init__(
        self, source: Source, pipeline: ImagePipeline, decoder: str, seed: int, samples: Sequence[Loaded] | None = None
    ) -> None:
        self._decoder = ImageDecoder(pipeline, decoder)
        self._reader = SampleReader(source, self._decoder)
        self.name = self._decoder.name
        self._pipeline, self._seed = pipeline, seed
        stride = max(1, len(source) // MAX_SAMPLES)
        spread = np.arange(0, len(source), stride)[:MAX_SAMPLES]
        chance = np.random.default_rng(seed)
        self.loaded = (
            samples if samples is not None else list(self._readable(source, chance.permutation(spread).tolist()))
        )
        self._samples = list(self.loaded)
        self._ensure_samples()
        height, width = pipeline.output_size
        self._slot = torch.empty(1, height, width, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
        self._resize = RESIZERS[pipeline.resample]

    @property
    def largest(self) -> tuple[int, int]:
        """Return width and height of the sample with the most pixels."""
        return max(((item.width, item.height) for item in self._samples), key=lambda size: size[0] * size[1])

    def measure(self, seconds: float, *, resize: bool = True) -> Rate:
        """Measure images/s on one thread; without `resize`, of decoding alone with the same windows."""
        crops = chain.from_iterable(map(self._crops, count()))
        images = min(STEP, len(self._samples))

        def step() -> int:
            for crop in islice(crops, images):
                if resize:
                    self._write(*crop)
            return images

        return on_one_thread(step, seconds)

    @property
    def decodes(self) -> bool:
        """Return whether there is anything to decode; arrays are not decoded."""
        return any(item.probe is not None for item in self._samples)

    def decode(self, seconds: float) -> Rate:
        """Measure images/s of decoding alone on one thread."""
        return self.measure(seconds, resize=False)

    def resize(self, seconds: float) -> Rate:
        """Measure images/s of resizing and mirroring decoded crops on one thread."""
        endless = cycle([(pixels.copy(), flip, number) for pixels, flip, number in islice(self._crops(0), MAX_CROPS)])

        def resize() -> int:
            self._write(*next(endless))
            return 1

        return on_one_thread(resize, seconds)

    def _write(self, pixels: Pixels, flip: bool, number: int) -> None:
        write_sample(pixels, self._slot, flip, self._resize, interpolation=INTERPOLATIONS[number])

    def _crops(self, epoch: int) -> Iterator[tuple[Pixels, bool, int]]:
        """Yield (decoded crop, mirror flag, filter) of each sample of an epoch; a crop is valid until the next one."""
        for item, window, flip, number in self._plan(epoch):
            try:
                pixels = self._reader.crop(item, window)
            except LoaderError:
                self._samples = [sample for sample in self._samples if sample is not item]
                self._ensure_samples()
                continue
            yield pixels, flip, number

    def _plan(self, epoch: int) -> Iterator[tuple[Loaded, Window, bool, int]]:
        numbers = np.array([(item.sample, item.width, item.height) for item in self._samples], np.int64)
        plan = plan_batch(self._pipeline, self._seed, epoch, numbers[:, 0], numbers[:, 1], numbers[:, 2])
        filters = choose_filters((self._pipeline,), self._seed, epoch, 0, numbers[:, 0]).tolist()
        return zip(self._samples, map(tuple, plan.windows.tolist()), plan.flips.tolist(), filters, strict=True)

    def _readable(self, source: Source, samples: Sequence[int]) -> Iterator[Loaded]:
        watch = Stopwatch()
        if is_fetching(source):
            source.announce(np.array(samples, np.int64))
        for number, sample in enumerate(samples):
            if number >= _MIN_SAMPLES and watch.seconds > _LOAD_S:
                break
            with suppress(LoaderError):
                yield self._reader.load(sample)
        if is_fetching(source):
            source.forget()

    def _ensure_samples(self) -> None:
        if not self._samples:
            raise LoaderError("E-NODATA", "none of the samples tried can be decoded")


class NativeCeiling(DecodeCeiling):
    """Measures the native library, with the Python path for images that the library does not support, as in a loader.

    Reading from the page cache is part of the measured work. Bad samples are left out. Raises LoaderError E-DEPENDENCY
    if the library is not built, E-MISUSE for data or settings that it does not support.
    """

    def __init__(
        self, source: Source, pipeline: ImagePipeline, seed: int, samples: Sequence[Loaded] | None = None
    ) -> None:
        super().__init__(source, pipeline, NATIVE, seed, samples)
        rows = native_rows(source, pipeline, NATIVE)
        if rows is None:
            cause = "the native library reads plain files, records and caches, and resizes as resample='torch' does"
            raise LoaderError("E-MISUSE", cause, fix="name another decoder, or 'auto'")
        self.name, self._rows = NATIVE, rows
        layout = image_layout((pipeline,), STEP)
        memory = np.empty(layout.num_bytes, np.uint8)
        self._output = Slot(layout, memory, np.zeros(STEP, BATCH_ROW))
        self._epoch = self._first = 0

    def measure(self, seconds: float, *, resize: bool = True) -> Rate:
        """Measure images/s on one thread; without `resize`, of reading and decoding alone with the same windows."""

        def step() -> int:
            batch = self._samples[self._first : self._first + STEP]
            self._first = self._first + STEP if self._first + STEP < len(self._samples) else 0
            self._epoch += 1
            plan = plan_images((self._pipeline,), self._seed, self._epoch, self._output.layout)
            samples = np.array([item.sample for item in batch], np.int64)
            rows = self._rows.fill(samples, np.arange(len(batch)), plan, self._output, draws=resize)
            filled = set() if rows is None else set(samples[rows].tolist())
            left = [item for item in batch if item.sample not in filled]
            return len(filled) + sum([self._make_in_python(item, resize) for item in left])

        return on_one_thread(step, seconds)

    def _make_in_python(self, item: Loaded, resize: bool) -> bool:
        """Make an image that the library does not support; return False for a bad one, which is then left out."""
        try:
            loaded = self._reader.load(item.sample)
            sides = [np.array([side], np.int64) for side in (loaded.sample, loaded.width, loaded.height)]
            plan = plan_batch(self._pipeline, self._seed, self._epoch, *sides)
            (number,) = choose_filters((self._pipeline,), self._seed, self._epoch, 0, sides[0]).tolist()
            pixels = self._reader.crop(loaded, tuple(plan.windows[0].tolist()))
        except LoaderError:
            self._samples = [sample for sample in self._samples if sample is not item]
            self._ensure_samples()
            return False
        if resize:
            super()._write(pixels, bool(plan.flips[0]), number)
        return True

    def _write(self, pixels: Pixels, flip: bool, number: int) -> None:
        self._rows.stage.resize(pixels, flip, self._output.images[0][0], number)


class DecodeCeilings:
    """Holds the ceilings of one benchmark run; their samples are read once for search and rounds.

    source(cached=...): the data as files or as a cache. Remote samples are fetched once and kept in memory.
    """

    def __init__(self, source: Callable[..., Source], pipeline: ImagePipeline, seed: int) -> None:
        self._source, self._pipeline, self._seed = source, pipeline, seed
        self._made: dict[tuple[str, bool], DecodeCeiling] = {}
        self._store: StoreCeiling | None = None
        self._fetched: FetchedSource | None = None

    def store(self, batch_size: int, *, cached: bool) -> StoreCeiling | None:
        """Return the ceiling of the data's remote storage; None for local data."""
        if self._store is None and not cached and has_remote_samples(self._source(cached=False)):
            self._store = StoreCeiling(self._source(cached=False), batch_size, self._seed)
        return None if cached else self._store

    def _in_memory(self, source: Source) -> Source:
        """Return a source that keeps fetched samples in memory if `source` is remote, else `source`."""
        if not has_remote_samples(source):
            return source
        if self._fetched is None:
            self._fetched = FetchedSource(fetched_apart(source))
        return self._fetched

    def of(self, decoder: str, *, cached: bool) -> DecodeCeiling:
        """Return the ceiling of a decoder. Raises LoaderError if it cannot decode any of the samples."""
        key = decoder, cached
        if key not in self._made:
            loaded = next((made.loaded for (_, of), made in self._made.items() if of == cached), None)
            source = self._in_memory(self._source(cached=cached))
            self._made[key] = ceiling_of(source, self._pipeline, decoder, self._seed, loaded)
        return self._made[key]

    def decoders(self, *, cached: bool) -> list[str]:
        """Return the decoders that work here and with this data, best first."""
        native = suits_native_library(self._source(cached=cached), self._pipeline, NATIVE)
        return all_decoders() if native else usable_decoders()


def ceiling_of(
    source: Source, pipeline: ImagePipeline, decoder: str, seed: int, samples: Sequence[Loaded] | None = None
) -> DecodeCeiling:
    """Return the ceiling of a decoder, which may be the native library; arguments as for DecodeCeiling."""
    if decoder != NATIVE:
        return DecodeCeiling(source, pipeline, decoder, seed, samples)
    return NativeCeiling(source, pipeline, seed, samples)


def on_one_thread(step: Callable[[], int], seconds: float) -> Rate:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_rate(step, seconds=seconds)
    finally:
        torch.set_num_threads(threads)


def all_decoders() -> list[str]:
    """Return the decoders that work here, including the native library, best first."""
    return [NATIVE] * (native_library() is not None) + usable_decoders()


def usable_decoders() -> list[str]:
    """Return the decoders of single images that work here, best first."""
    usable = []
    for name in JPEG_DECODERS:
        try:
            choose_jpeg_decoder(name)
        except LoaderError:
            continue
        usable.append(name)
    return usable


def transfer_rate(pipeline: ImagePipeline, batch_size: int, dtype: torch.dtype, device: str, seconds: float) -> Rate:
    """Measure images/s of the feed alone: copy one uint8 host batch to `device` and normalise it there.

    On a CPU the batch is only normalised, not copied. With dtype uint8 it is only copied.
    """
    height, width = pipeline.output_size
    batch = torch.randint(0, 256, (batch_size, height, width, 3), dtype=torch.uint8)
    target = torch.device(device)
    stage = BatchStage(pipeline, dtype, target)
    if target.type == "cuda":
        batch = batch.pin_memory()
    out = torch.empty(batch.shape, dtype=dtype) if target.type == "cpu" else None

    def send() -> int:
        stage(batch.to(target, non_blocking=True), out)
        return batch_size

    return measure_rate(send, seconds=seconds, device=device)
