"""The measurements of a run: one probe for each loader, baseline, model and ceiling."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.bench.probe.ceilings.decode import MAX_SAMPLES, DecodeCeiling, DecodeCeilings, ceiling_of, transfer_rate
from penstock.bench.probe.ceilings.read import ReadCeiling, bytes_an_image
from penstock.bench.probe.ceilings.replay import ReplayedBatches, host_batches
from penstock.bench.probe.data.wrapped_sources import sample_of
from penstock.bench.probe.search.backends import start_workers
from penstock.bench.probe.search.candidate import BenchData, Candidate
from penstock.bench.probe.search.settings_sweep import SearchResult
from penstock.bench.record.bench_record import (
    COPY,
    COPY_AND_NORMALISE,
    DECODE,
    DTYPES,
    LOSSLESS_CACHE,
    NORMALISE,
    READ_COLD,
    READ_MANY,
    READ_WARM,
    REPLAYED,
    RESIZE,
    bf16_name,
    decode_name,
    fetch_name,
    replayed_model_name,
)
from penstock.bench.record.clock import Rate, StepTimes
from penstock.bench.record.loader_rate import loader_rate
from penstock.bench.record.loader_time import StoreTime
from penstock.bench.record.settings import BenchSettings
from penstock.bench.run.measured_loader import LoaderTurns
from penstock.bench.run.pillow_loader import BASELINE_NAME, OnDevice, baseline_loader, end_workers, worker_pids
from penstock.bench.run.rounds import Key, Prepared, Probe
from penstock.bench.run.time_budget import TimeBudget
from penstock.bench.train.step.models import build_model
from penstock.bench.train.step.rates import resident_batch_rate, training_times
from penstock.bench.train.step.settings import TrainSettings
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.sources.contract import Source, is_cache

CACHE_SHARE = 0.5  # share of a budget that must be left to build a cache of a sample
_MAX_CACHED_BYTES = 64 << 20  # size of such a sample: built in seconds
_CACHED_IN_TIME = 64  # images of such a sample with a budget: built in 5 s on two slow cores
_PATIENCE = 2.0  # with a budget: multiple of a measurement's length that a model's slow steps may take

Probes = dict[Key, Probe]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Hold the subject of a run.

    Attributes:
        found: the search's result: the candidate to measure as the loader, and the best of other backends.
        ceilings: the decode ceilings; the search has already read their samples.
    """

    data: BenchData
    settings: BenchSettings
    found: SearchResult
    ceilings: DecodeCeilings
    budget: TimeBudget

    @property
    def chosen(self) -> Candidate:
        """Return the candidate that is measured as the loader."""
        return self.found.chosen

    @property
    def served(self) -> Source:
        """Return the source that the loader reads."""
        return self.data.opener.source(cached=self.chosen.cached)

    @property
    def baseline_workers(self) -> int:
        """Return the number of workers of the baselines."""
        return start_workers(self.settings)

    @property
    def decoders(self) -> dict[str, DecodeCeiling]:
        """Return decoder -> its ceiling on the loader's source."""
        cached = self.chosen.cached
        names = self.ceilings.decoders(cached=cached) if self.settings.decoder == "auto" else [self.settings.decoder]
        return {name: self.ceilings.of(name, cached=cached) for name in names}


class RunProbes:
    """Builds the probes of a run around its loader.

    stack: closes the baselines. notes: receives the reasons for everything left out.

    Attributes:
        how: name of a measurement -> its conditions as text.
        store: measures the storage that the loader fetches from; None for local data.
        abouts: backend -> the description of its loader, once opened.
    """

    def __init__(self, subject: Subject, turns: LoaderTurns, stack: ExitStack, notes: list[str]) -> None:
        self._subject, self._settings = subject, subject.settings
        self._turns, self._stack, self._notes = turns, stack, notes
        self._about = turns.about
        self._others: Callable[[], set[int]] = set  # ids of processes that do not belong to the loader
        self.decoder = str(self._about["decoder"])
        self.how: dict[str, str] = {}
        self.abouts = {subject.chosen.backend: self._about}
        self.store = subject.ceilings.store(subject.settings.batch_size, cached=subject.chosen.cached)
        if self.store is not None:
            self.store.begin(int(subject.chosen.option("requests") or self.store.requests))

    def all(self) -> Probes:
        """Return all requested probes in the order of a run without a budget."""
        again = self._replay(self._settings)
        probes = {("ceiling", name): probe for name, probe in self._ceilings(again)} | self._loaders()
        if self._settings.baseline:
            probes |= self._baselines()
        if self._settings.model:
            probes |= self._models(self._settings.model, again)
        return probes

    # ---- ceilings ----

    def _ceilings(self, again: ReplayedBatches | None) -> Iterator[tuple[str, Probe]]:
        """Yield (name, probe) of each stage of a sample alone, for a quarter of a measurement's time.

        A decoder's probe takes half of a measurement's time. Remote data is fetched instead of read. For arrays the
        stages of reading and of decoding alone are left out.
        """
        subject, store, seconds = self._subject, self.store, self._settings.seconds / 4
        decoders, pipeline = subject.decoders, subject.data.pipeline
        for name, ceiling in decoders.items():
            yield decode_name(name), partial(ceiling.measure, 2 * seconds)
        mine = decoders.get(self.decoder) or next(iter(decoders.values()))
        if mine.decodes:
            yield DECODE, partial(mine.decode, seconds)
        yield RESIZE, partial(mine.resize, seconds)
        if store is not None:
            yield fetch_name(store.requests), partial(store.rate, 2 * seconds)
            if store.more_requests is not None:
                yield fetch_name(store.more_requests), partial(store.rate_of_more, 2 * seconds)
        elif (reading := ReadCeiling(subject.served, pipeline, self._settings.seed)).possible:
            yield READ_WARM, partial(reading.warm, seconds)
            yield READ_COLD, partial(reading.cold, seconds)
            yield READ_MANY, partial(reading.many, seconds)
        yield from self._feeding(seconds)
        if self._wants_cache_ceiling():
            yield LOSSLESS_CACHE, Prepared(self._cache_probe)
        if again is not None:
            measure = partial(loader_rate, again, seconds=seconds, device=self._settings.device)
            yield REPLAYED, Prepared(lambda: (again.prepare(), measure)[1])

    def _feeding(self, seconds: float) -> Iterator[tuple[str, Probe]]:
        """Yield the stages between worker and model: copying and normalising; nothing for uint8 batches on a CPU."""
        wanted = self._settings
        sent = partial(transfer_rate, self._subject.data.pipeline, wanted.batch_size, device=wanted.device)
        if wanted.device != "cpu":
            yield COPY, partial(sent, dtype=DTYPES["uint8"], seconds=seconds)
        if wanted.device != "cpu" or wanted.dtype != "uint8":
            name = NORMALISE if wanted.device == "cpu" else COPY_AND_NORMALISE
            yield name, partial(sent, dtype=DTYPES[wanted.dtype], seconds=seconds)

    def _wants_cache_ceiling(self) -> bool:
        """Return whether to build a cache of a sample, which takes seconds; note it if there is no time."""
        source, budget = self._subject.data.source, self._subject.budget
        uses_cache = self._about["backend"] != "torch" or self._subject.data.opener.has(cached=True)
        if uses_cache or is_cache(source) or not bytes_an_image(source):  # arrays are not decoded
            return False
        enough = budget.left >= budget.share(CACHE_SHARE)
        if not enough:
            self._notes.append(f"{LOSSLESS_CACHE} was left out: no time for it (--budget)")
        return enough

    def _cache_probe(self) -> Probe:
        """Return the probe for decoding from a lossless cache. Raises LoaderError if none can be built."""
        subject, wanted = self._subject, self._settings
        images = MAX_SAMPLES if subject.budget.seconds is None else _CACHED_IN_TIME
        with cached_sample(subject.data.source, subject.baseline_workers, images) as (_, cache):
            ceiling = ceiling_of(cache, subject.data.pipeline, self.decoder, wanted.seed)  # the open file survives
        return partial(ceiling.measure, wanted.seconds / 2)

    def _replay(self, wanted: BenchSettings) -> ReplayedBatches | None:
        """Return finished batches that pass through the loader's feed repeatedly; None if the feed does nothing."""
        if wanted.device == "cpu" and wanted.dtype == "uint8":
            return None
        subject = self._subject
        batches = partial(host_batches, subject.served, subject.data.pipeline, wanted.batch_size, wanted.seed)
        resident = wanted.device != "cpu" and self._about.get("decodes_on") == "cuda"
        return ReplayedBatches(batches, subject.data.pipeline, DTYPES[wanted.dtype], wanted.device, resident=resident)

    def describe_store(self) -> StoreTime | None:
        """Return the measurement of remote storage and add it to `how`; None for local data."""
        time = self.store.time() if self.store else None
        if time is not None:
            text = f"{time.bytes_per_s / 1e6:,.1f} MB/s, {1e3 * time.first_byte_s:,.0f} ms to the first byte"
            self.how[fetch_name(time.requests)] = text
            if time.more_requests and time.more_bytes_per_s:
                self.how[fetch_name(time.more_requests)] = f"{time.more_bytes_per_s / 1e6:,.1f} MB/s"
        return time

    # ---- loaders ----

    def _rate(self, batches: Any) -> Rate:
        return loader_rate(batches, seconds=self._settings.seconds, device=self._settings.device)

    def _loaders(self) -> Probes:
        own = ("loader", loader_name(self._subject.chosen))
        probes: Probes = {own: self._watch(own, self._rate)}
        for other in self._subject.found.others:
            self.how[loader_name(other)] = other.describe().partition(" of the ")[2]
            probes["other", loader_name(other)] = partial(self._other_rate, other)
        return probes

    def _watch(self, key: Key, measure: Callable[[Any], Rate | StepTimes]) -> Probe:
        """Return the probe of the loader's batches; the baselines' workers are not counted."""
        return lambda: self._turns.measure(key, self._settings, measure, self._others)

    def _other_rate(self, candidate: Candidate) -> Rate:
        """Measure the best candidate of another backend, opened only for that: its workers would slow down others."""
        with self._subject.data.opener.open(candidate) as loader:
            self.abouts[candidate.backend] = loader.describe()
            return self._rate(loader)

    # ---- baselines ----

    def _baselines(self) -> Probes:
        subject, wanted = self._subject, self._settings
        workers = subject.baseline_workers
        loader = baseline_loader(
            subject.data.plain,
            subject.data.pipeline,
            batch_size=wanted.batch_size,
            workers=workers,
            dtype=DTYPES[wanted.dtype],
            pin_memory=wanted.device != "cpu",
        )
        self._stack.callback(end_workers, loader)
        self.how[BASELINE_NAME] = f"{workers} workers"
        self._others = lambda: worker_pids(loader)
        return {("baseline", BASELINE_NAME): partial(self._rate, OnDevice(loader, wanted.device))}

    # ---- models ----

    def _models(self, name: str, again: ReplayedBatches | None) -> Probes:
        wanted = self._settings
        patience = math.inf if self._subject.budget.seconds is None else _PATIENCE
        num_classes = max(2, len(self._subject.data.source.classes))
        settings = training_settings(wanted)
        model = build_model(settings, num_classes)
        if again is None or wanted.dtype == "uint8":  # models do not accept uint8
            again = self._replay(replace(wanted, dtype="float32"))
        assert again is not None
        batches = again

        def on_resident_batch(settings: TrainSettings, seconds: float) -> Prepared:
            rate = partial(resident_batch_rate, model, settings, seconds=seconds, patience=patience)
            return Prepared(lambda: partial(rate, batch=batches.one()))

        probes: Probes = {("model", f"{name} on a resident batch"): on_resident_batch(settings, wanted.seconds)}
        if wanted.amp == "off":
            bf16 = replace(settings, amp="bf16")
            probes["ceiling", bf16_name(name)] = on_resident_batch(bf16, wanted.seconds / 2)
        if wanted.dtype == "uint8":
            return probes
        train = partial(training_times, model, settings, patience=patience)
        key = ("both", f"penstock + {name}")
        probes[key] = self._watch(key, lambda batches: train(loader=batches, seconds=wanted.seconds))
        probes["ceiling", replayed_model_name(name)] = partial(train, loader=again, seconds=wanted.seconds / 2)
        return probes


def training_settings(wanted: BenchSettings) -> TrainSettings:
    """Return the training settings of a run."""
    return TrainSettings(
        model=str(wanted.model), device=wanted.device, amp=wanted.amp, compile=wanted.compile, seed=wanted.seed
    )


@contextmanager
def cached_sample(source: Source, workers: int | None, images: int | None = None) -> Iterator[tuple[Source, Source]]:
    """Yield a sample of at most 64 MiB and `images` images, and its lossless cache in a temporary folder."""
    count = max(1, _MAX_CACHED_BYTES // (bytes_an_image(source) or 1))
    sample = sample_of(source, count if images is None else min(images, count))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        path = Path(folder, "sample.h5")
        build_cache(sample, path, workers=workers)
        yield sample, open_cache(path)


def loader_name(candidate: Candidate) -> str:
    """Return the name of a candidate's measurement."""
    return f"penstock, {candidate.backend} backend"
