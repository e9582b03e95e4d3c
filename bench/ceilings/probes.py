"""Lists the ceilings that a run measures (rates of single stages), in which order, and for how long."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from penstock.bench.ceilings.decode import MAX_SAMPLES, DecodeCeiling, ceiling_of, transfer_rate
from penstock.bench.ceilings.read import ReadCeiling, bytes_an_image
from penstock.bench.ceilings.replay import ReplayedBatches, host_batches
from penstock.bench.ceilings.store import StoreCeiling
from penstock.bench.data.wrapped_sources import sample_of
from penstock.bench.measure.clock import Rate, StepTimes
from penstock.bench.measure.loader_rate import loader_rate
from penstock.bench.record.bench_record import (
    COPY,
    COPY_AND_NORMALISE,
    DECODE,
    DTYPES,
    NORMALISE,
    READ_COLD,
    READ_MANY,
    READ_WARM,
    REPLAYED,
    RESIZE,
    BenchSettings,
    decode_name,
    fetch_name,
)
from penstock.loaders.cache.hdf5_cache import open_cache
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.sources.contract import Source, is_cache
from penstock.pipelines.spec import ImagePipeline

_MIN_CACHED, _MAX_CACHED_BYTES = 8, 64 << 20  # of the sample that is cached: fewest images, most bytes

Probe = Callable[[], "Rate | StepTimes"]
Named = Iterator[tuple[str, Probe]]


class Prepared:
    """Measure what takes seconds to prepare, which is not done before its turn comes; `make()` returns the probe."""

    def __init__(self, make: Callable[[], Probe]) -> None:
        self._made = cache(make)

    def prepare(self) -> None:
        """Make the probe, unless that is done. Raises as making it does."""
        self._made()

    def __call__(self) -> Rate | StepTimes:
        return self._made()()


def list_ceiling_probes(
    served: Source,
    pipeline: ImagePipeline,
    settings: BenchSettings,
    decoders: Mapping[str, DecodeCeiling],
    chosen: str,
    store: StoreCeiling | None = None,
) -> Named:
    """Yield (name, probe) for each stage that a sample passes through, each to be measured alone.

    A decoder's probe takes half of a measurement's time, each other one a quarter. decoders: name -> its ceiling;
    chosen: the name of the loader's decoder. store: of remote data, which are fetched instead of read. For arrays the
    stages of reading and of decoding alone are left out.
    """
    seconds = settings.seconds / 4
    for name, ceiling in decoders.items():
        yield decode_name(name), partial(ceiling.measure, 2 * seconds)
    mine = decoders.get(chosen) or next(iter(decoders.values()))
    if mine.decodes:
        yield DECODE, partial(mine.decode, seconds)
    yield RESIZE, partial(mine.resize, seconds)
    if store is not None:
        yield fetch_name(store.requests), partial(store.rate, 2 * seconds)
        if store.more_requests is not None:
            yield fetch_name(store.more_requests), partial(store.rate_of_more, 2 * seconds)
    elif (reading := ReadCeiling(served, pipeline, settings.seed)).possible:
        yield READ_WARM, partial(reading.warm, seconds)
        yield READ_COLD, partial(reading.cold, seconds)
        yield READ_MANY, partial(reading.many, seconds)
    yield from _feeding(pipeline, settings, seconds)


def _feeding(pipeline: ImagePipeline, settings: BenchSettings, seconds: float) -> Named:
    """Yield the stages between worker and model: copying and normalising; none for uint8 batches on a CPU."""
    sent = partial(transfer_rate, pipeline, settings.batch_size)
    wanted = (DTYPES[settings.dtype], settings.device, seconds)
    if settings.device != "cpu":
        yield COPY, partial(sent, DTYPES["uint8"], settings.device, seconds)
        yield COPY_AND_NORMALISE, partial(sent, *wanted)
    elif settings.dtype != "uint8":
        yield NORMALISE, partial(sent, *wanted)


def is_worth_caching(source: Source) -> bool:
    """Return whether a lossless cache of `source` makes sense: not of a cache, nor of arrays."""
    return not is_cache(source) and bool(bytes_an_image(source))


def build_cache_ceiling(
    source: Source, pipeline: ImagePipeline, decoder: str, seed: int, workers: int, images: int = MAX_SAMPLES
) -> DecodeCeiling:
    """Return the decode ceiling of a lossless cache of at most `images` of `source`; its deleted file stays open.

    Raises LoaderError E-DEPENDENCY where no cache can be built.
    """
    size = bytes_an_image(source) or 1
    sample = sample_of(source, max(_MIN_CACHED, min(images, _MAX_CACHED_BYTES // size)))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder, "sample.h5")
        build_cache(sample, path, workers=workers)
        return ceiling_of(open_cache(path), pipeline, decoder, seed)  # an open file outlives its folder


def prepare_replay(
    served: Source, pipeline: ImagePipeline, settings: BenchSettings, about: Mapping[str, object]
) -> ReplayedBatches | None:
    """Return ready-made batches that pass through the loader's feed again and again; None where that takes no work.

    about: what the loader says of itself.
    """
    if settings.device == "cpu" and settings.dtype == "uint8":
        return None
    batches = partial(host_batches, served, pipeline, settings.batch_size, settings.seed)
    resident = settings.device != "cpu" and about.get("decodes_on") == "cuda"
    return ReplayedBatches(batches, pipeline, DTYPES[settings.dtype], settings.device, resident=resident)


def make_replay_probe(batches: ReplayedBatches, settings: BenchSettings) -> tuple[str, Probe]:
    """Return (name, probe) of the replayed batches: copy and batch stage without the work of making a batch."""
    measure = partial(loader_rate, batches, seconds=settings.seconds / 4, device=settings.device)
    return REPLAYED, Prepared(lambda: (batches.prepare(), measure)[1])
