"""One benchmark run: loader, model and ceilings measured in turn, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from penstock.bench.baseline import BASELINE_NAME, OnDevice, baseline_loader, end_workers, worker_pids
from penstock.bench.candidates import Candidate, LoaderOpener
from penstock.bench.ceiling_probes import Probe, ceiling_probes, lossless_cache_ceiling, replay_probe, replayed
from penstock.bench.ceilings import DecodeCeiling, usable_decoders
from penstock.bench.dali_peer import PEER_KNOBS, PEER_NAME, DaliPeer, PeerSettings
from penstock.bench.environment import describe_environment
from penstock.bench.knobs import knobs_of, unlike_defaults
from penstock.bench.measure import Rate, StepTimes
from penstock.bench.models import create_model
from penstock.bench.rates import loader_rate, resident_batch_rate, training_times
from penstock.bench.read_ceilings import bytes_an_image
from penstock.bench.record import (
    DTYPES,
    LOSSLESS_CACHE,
    OVER_TIME,
    READ_COLD,
    BenchRecord,
    BenchSettings,
    Measured,
    replayed_model_name,
)
from penstock.bench.repeated_source import repeated
from penstock.bench.replay import ReplayedBatches
from penstock.bench.resources import Resources, ResourceWatch
from penstock.bench.train_settings import TrainSettings
from penstock.bench.tuning import Opened, Options, Space, Tuned, num_measurements, search
from penstock.loaders.hdf5_loader import prepare_source
from penstock.loaders.loader import Loader
from penstock.loaders.machine import default_workers
from penstock.loaders.source import Source, open_source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import ImagePipeline, imagenet_train

_Key = tuple[str, str]  # kind, name


class BenchRun:
    """Measures what the settings ask for; `progress(done, total, what)` is called before each measurement.

    space: the knobs that run() searches first, with the values it tries. workers: of the loader unless that search
    says otherwise, and of the baselines.
    """

    def __init__(self, data: Any, settings: BenchSettings, progress: Callable[[int, int, str], None]) -> None:
        self.settings, self._progress = settings, progress
        self.source: Source = open_source(data)
        self._plain = self._at_length(self.source)
        self._served = self._to_serve()
        self.pipeline: ImagePipeline = imagenet_train(settings.size)
        self.workers = default_workers() if settings.workers is None else settings.workers
        if len(self._served) < settings.batch_size:
            raise ValueError(
                f"{len(self._served)} images do not fill a batch of {settings.batch_size}: pass a smaller --batch-size"
            )
        chosen = usable_decoders() if settings.decoder == "auto" else [settings.decoder]
        self._ceilings = {name: DecodeCeiling(self._served, self.pipeline, name, settings.seed) for name in chosen}
        self._largest = next(iter(self._ceilings.values())).largest
        self.space = knobs_of(settings.backend, settings.device, settings.workers, self._largest)
        self._notes: list[str] = []
        self._how: dict[str, str] = {}  # what is measured -> how
        self._resources: dict[_Key, list[Resources]] = {}
        self._others: Callable[[], set[int]] = set  # processes beside the loader's
        if not settings.tunes:
            self.space = {}
        elif not self.space:
            self._notes.append(f"there is no knob to search of backend {settings.backend!r} with these settings")

    def _to_serve(self) -> Source:
        """What the loader reads: the data or its cache. The baseline always reads the data."""
        if self.settings.cache is None:
            return self._plain
        return self._at_length(prepare_source(self.source, self.settings.cache))

    def _at_length(self, source: Source) -> Source:
        return source if self.settings.entries is None else repeated(source, self.settings.entries)

    def run(self) -> BenchRecord:
        """The search of knobs, then every measurement in turn, `rounds` times over, so that a drift of the machine's
        speed touches all alike.
        """
        options, tuned = self._search(self.space, self._rate_of)
        with ExitStack() as stack:
            loader = stack.enter_context(self._open(options))
            measured = self._measured(self._probes(stack, loader))
            about = loader.describe()
            return BenchRecord(
                settings=self.settings,
                workers=int(options.get("workers") or self.workers),
                decoder=str(about["decoder"]),
                data={
                    "summary": self._served.describe(),
                    "images": len(self._served),
                    "bytes_an_image": bytes_an_image(self._served),
                    "fingerprint": self._served.fingerprint,
                },
                environment=describe_environment(),
                loader=about,
                measured=measured,
                tuned=tuned,
                options={k: v for k, v in unlike_defaults(self.settings.backend, options).items() if k != "workers"},
                notes=tuple(self._notes),
            )

    def _search(self, space: Space, opened: Opened, whose: str = "") -> tuple[Options, dict[str, Tuned]]:
        done, total = count(), num_measurements(space)
        return search(space, opened, lambda what: self._progress(next(done), total, whose + what))

    @contextmanager
    def _rate_of(self, options: Options) -> Iterator[Callable[[], float]]:
        seconds, device = self.settings.seconds / 4, self.settings.device
        with self._open(options) as loader:
            yield lambda: loader_rate(loader, seconds=seconds, device=device).median

    def _measured(self, probes: dict[_Key, Probe]) -> tuple[Measured, ...]:
        """Every probe in turn; a baseline that cannot serve the data is left out with a note."""
        results: dict[_Key, list[Rate | StepTimes]] = {key: [] for key in probes}
        done, total = count(), len(probes) * self.settings.rounds
        for _ in range(self.settings.rounds):
            for key in list(results):
                self._progress(next(done), total, key[1])
                try:
                    results[key].append(probes[key]())
                except Exception as error:  # a baseline's, of whatever kind: it takes no bad file
                    if key[0] != "baseline" and not (key[1] == READ_COLD and isinstance(error, ValueError)):
                        raise
                    self._leave_out(key[1], error)
                    del results[key]
        return tuple(
            _summary(*key, rates, self._how.get(key[1], ""), self._resources.get(key, []))
            for key, rates in results.items()
        )

    def _leave_out(self, name: str, error: Exception) -> None:
        named = f"{type(error).__name__}: {error}" if name != READ_COLD else str(error)
        why = error.cause if isinstance(error, LoaderError) else named.splitlines()[-1]
        self._notes.append(f"{name} was left out: {why}")

    def _open(self, options: Options) -> Loader:
        wanted, cached = self.settings, self._served is not self._plain
        opener = LoaderOpener(wanted, self.pipeline, self._plain, self._served if cached else None)
        return opener.open(
            Candidate(
                backend=wanted.backend,
                decoder=wanted.decoder,
                dtype=wanted.dtype,
                cached=cached,
                options={"workers": self.workers, **options},
            )
        )

    def _probes(self, stack: ExitStack, loader: Loader) -> dict[_Key, Probe]:
        wanted, seconds = self.settings, self.settings.seconds
        probes: dict[_Key, Probe] = {}
        about = loader.describe()
        for name, probe in ceiling_probes(self._served, self.pipeline, wanted, self._ceilings, str(about["decoder"])):
            probes["ceiling", name] = probe
        if wanted.backend == "torch":
            probes |= self._cache_probe(str(about["decoder"]))
        again = replayed(self._served, self.pipeline, wanted, about)
        if again is not None:
            name, probe = replay_probe(again, wanted)
            probes["ceiling", name] = probe
        own = ("loader", f"penstock, {wanted.backend} backend")
        probes[own] = self._watched(
            own, loader, lambda batches: loader_rate(batches, seconds=seconds, device=wanted.device)
        )
        if wanted.baseline:
            probes["baseline", BASELINE_NAME] = self._baseline(stack)
            peer = self._peer(stack) if about["backend"] == "dali" else None
            if peer is not None:
                probes["baseline", PEER_NAME] = partial(loader_rate, peer, seconds=seconds, device=wanted.device)
        if wanted.model:
            probes |= self._model_probes(wanted.model, loader, again)
        return probes

    def _cache_probe(self, decoder: str) -> dict[_Key, Probe]:
        """What decoding from a lossless cache would do, unless none can be built, which is noted."""
        try:
            cached = lossless_cache_ceiling(self.source, self.pipeline, decoder, self.settings.seed, self.workers)
        except LoaderError as error:
            self._leave_out(LOSSLESS_CACHE, error)
            return {}
        return {("ceiling", LOSSLESS_CACHE): partial(cached.measure, self.settings.seconds / 2)} if cached else {}

    def _watched(self, key: _Key, loader: Loader, measure: Callable[[Any], Rate | StepTimes]) -> Probe:
        """The measurement of the loader's batches, and what it takes of the machine."""

        def probe() -> Rate | StepTimes:
            wanted = self.settings
            with ResourceWatch(wanted.seconds, device=wanted.device, without=self._others) as watch:
                result = measure(watch.watched(loader))
            found = watch.resources()
            if found is not None:
                self._resources.setdefault(key, []).append(found)
            return result

        return probe

    def _baseline(self, stack: ExitStack) -> Probe:
        wanted = self.settings
        loader = baseline_loader(
            self._plain,
            self.pipeline,
            batch_size=wanted.batch_size,
            workers=self.workers,
            dtype=DTYPES[wanted.dtype],
            pin_memory=wanted.device != "cpu",
        )
        stack.callback(end_workers, loader)
        self._how[BASELINE_NAME] = f"{self.workers} workers"
        self._others = lambda: worker_pids(loader)
        return partial(loader_rate, OnDevice(loader, wanted.device), seconds=wanted.seconds, device=wanted.device)

    def _peer(self, stack: ExitStack) -> DaliPeer | None:
        """DALI's own pipeline, its knobs searched as ours are; None, with a note, where it cannot serve."""
        wanted = self.settings
        settings = PeerSettings(
            pipeline=self.pipeline,
            batch_size=wanted.batch_size,
            device=wanted.device,
            dtype=DTYPES[wanted.dtype],
            seed=wanted.seed,
            largest=self._largest,
        )

        def opened(options: Options) -> DaliPeer:
            return DaliPeer(self.source, self._plain, settings, {"workers": self.workers, **options})

        @contextmanager
        def rate_of(options: Options) -> Iterator[Callable[[], float]]:
            with closing(opened(options)) as peer:
                yield lambda: loader_rate(peer, seconds=wanted.seconds / 4, device=wanted.device).median

        space = {knob: self.space[knob] for knob in PEER_KNOBS if knob in self.space}
        try:
            options, _ = self._search(space, rate_of, f"{PEER_NAME}, ")
            peer = stack.enter_context(closing(opened(options)))
        except LoaderError as error:
            self._leave_out(PEER_NAME, error)
            return None
        values = {"workers": self.workers, **options}
        chosen = [f"{knob} {value}" for knob, value in values.items() if value is not None]
        dtype = [] if settings.handed_out == settings.dtype else [str(settings.handed_out).removeprefix("torch.")]
        self._how[PEER_NAME] = ", ".join([*chosen, *dtype])
        return peer

    def _model_probes(self, name: str, loader: Loader, again: ReplayedBatches | None) -> dict[_Key, Probe]:
        wanted = self.settings
        num_classes = max(2, len(self.source.classes))
        settings = TrainSettings(model=name, device=wanted.device, amp=wanted.amp, seed=wanted.seed)
        model = create_model(name, num_classes, seed=wanted.seed)
        shape = (wanted.batch_size, 3, wanted.size, wanted.size)
        probes: dict[_Key, Probe] = {}
        probes["model", f"{name} on a resident batch"] = partial(
            resident_batch_rate, model, settings, shape=shape, num_classes=num_classes, seconds=wanted.seconds
        )
        train = partial(training_times, model, settings)
        if wanted.dtype != "uint8":
            key = ("both", f"penstock + {name}")
            probes[key] = self._watched(key, loader, lambda batches: train(loader=batches, seconds=wanted.seconds))
            if again is not None:
                probes["ceiling", replayed_model_name(name)] = partial(train, loader=again, seconds=wanted.seconds / 2)
        return probes


def _summary(kind: str, name: str, results: list[Rate | StepTimes], note: str, resources: list[Resources]) -> Measured:
    steps = [result for result in results if isinstance(result, StepTimes)]
    rates = [r.images_per_s if isinstance(r, StepTimes) else r for r in results]
    found = [rate for rate in rates if rate is not None]
    medians, taken = [rate.median for rate in found], Resources.of_rounds(resources)
    windows = tuple(rate.rounded() for rate in found) if kind in OVER_TIME else ()
    made = Measured.of(name, kind, medians or [0.0], note=note, resources=taken, over_time=windows)
    return replace(made, wait_share=statistics.median(s.wait_share for s in steps)) if steps else made
