"""One benchmark run: loader, model and ceilings measured in turn, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from penstock.bench.baseline import BASELINE_NAME, OnDevice, baseline_loader, end_workers
from penstock.bench.ceilings import DecodeCeiling, read_rate, transfer_rate, usable_decoders
from penstock.bench.dali_peer import PEER_KNOBS, PEER_NAME, DaliPeer, PeerSettings
from penstock.bench.environment import describe_environment
from penstock.bench.knobs import knobs_of, unlike_defaults
from penstock.bench.measure import Rate, StepTimes
from penstock.bench.models import create_model
from penstock.bench.rates import loader_rate, resident_batch_rate, training_times
from penstock.bench.record import DTYPES, BenchRecord, BenchSettings, Measured, decode_name
from penstock.bench.repeated_source import repeated
from penstock.bench.train_settings import TrainSettings
from penstock.bench.tuning import Opened, Options, Space, Tuned, num_measurements, search
from penstock.loaders.create import create_loader
from penstock.loaders.hdf5_loader import prepare_source
from penstock.loaders.loader import Loader
from penstock.loaders.machine import default_workers
from penstock.loaders.source import Source, open_source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.spec import ImagePipeline, imagenet_train

Probe = Callable[[], "Rate | StepTimes"]


class BenchRun:
    """Measures what the settings ask for; `progress(done, total, what)` is called before each measurement.

    space: the knobs that run() searches first, with the values it tries. workers: of the loader unless that search
    says otherwise, and of the baselines.
    """

    def __init__(self, data: Any, settings: BenchSettings, progress: Callable[[int, int, str], None]) -> None:
        self.settings, self._progress = settings, progress
        self.source: Source = open_source(data)
        self._served, self._plain = self._to_serve(), self._at_length(self.source)
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
        if not settings.tunes:
            self.space = {}
        elif not self.space:
            self._notes.append(f"there is no knob to search of backend {settings.backend!r} with these settings")

    def _to_serve(self) -> Source:
        """What the loader reads: the data or its cache. The baseline always reads the data."""
        served = self.source
        if self.settings.cache is not None:
            served = prepare_source(served, self.settings.cache)
        return self._at_length(served)

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

    def _measured(self, probes: dict[tuple[str, str], Probe]) -> tuple[Measured, ...]:
        """Every probe in turn; a baseline that cannot serve the data is left out with a note."""
        results: dict[tuple[str, str], list[Rate | StepTimes]] = {key: [] for key in probes}
        done, total = count(), len(probes) * self.settings.rounds
        for _ in range(self.settings.rounds):
            for key in list(results):
                self._progress(next(done), total, key[1])
                try:
                    results[key].append(probes[key]())
                except Exception as error:  # a baseline's, of whatever kind: it takes no bad file
                    if key[0] != "baseline":
                        raise
                    self._leave_out(key[1], error)
                    del results[key]
        return tuple(_summary(kind, name, rates, self._how.get(name, "")) for (kind, name), rates in results.items())

    def _leave_out(self, name: str, error: Exception) -> None:
        why = error.cause if isinstance(error, LoaderError) else f"{type(error).__name__}: {error}".splitlines()[-1]
        self._notes.append(f"{name} was left out: {why}")

    def _open(self, options: Options) -> Loader:
        wanted = self.settings
        given: dict[str, Any] = {"workers": self.workers, **options}
        return create_loader(
            self._served,
            backend=wanted.backend,
            pipeline=self.pipeline,
            batch_size=wanted.batch_size,
            device=wanted.device,
            dtype=DTYPES[wanted.dtype],
            seed=wanted.seed,
            decoder=wanted.decoder,
            on_bad_sample="replace",
            **given,
        )

    def _probes(self, stack: ExitStack, loader: Loader) -> dict[tuple[str, str], Probe]:
        wanted, seconds = self.settings, self.settings.seconds
        probes: dict[tuple[str, str], Probe] = {}
        for name, ceiling in self._ceilings.items():
            probes["ceiling", decode_name(name)] = partial(ceiling.measure, seconds / 2)
        probes["ceiling", "read images, one thread"] = partial(read_rate, self._served, seconds / 4)
        if wanted.device != "cpu" or wanted.dtype != "uint8":  # else there is nothing to do between worker and model
            copied = "copy to device + normalise" if wanted.device != "cpu" else "normalise"
            dtype = DTYPES[wanted.dtype]
            probes["ceiling", copied] = partial(
                transfer_rate, self.pipeline, wanted.batch_size, dtype, wanted.device, seconds / 4
            )
        probes["loader", f"penstock, {wanted.backend} backend"] = partial(
            loader_rate, loader, seconds=seconds, device=wanted.device
        )
        if wanted.baseline:
            probes["baseline", BASELINE_NAME] = self._baseline(stack)
            peer = self._peer(stack) if loader.describe()["backend"] == "dali" else None
            if peer is not None:
                probes["baseline", PEER_NAME] = partial(loader_rate, peer, seconds=seconds, device=wanted.device)
        if wanted.model:
            probes |= self._model_probes(wanted.model, loader)
        return probes

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

    def _model_probes(self, name: str, loader: Loader) -> dict[tuple[str, str], Probe]:
        wanted = self.settings
        num_classes = max(2, len(self.source.classes))
        settings = TrainSettings(model=name, device=wanted.device, amp=wanted.amp, seed=wanted.seed)
        model = create_model(name, num_classes, seed=wanted.seed)
        shape = (wanted.batch_size, 3, wanted.size, wanted.size)
        probes: dict[tuple[str, str], Probe] = {}
        probes["model", f"{name} on a resident batch"] = partial(
            resident_batch_rate, model, settings, shape=shape, num_classes=num_classes, seconds=wanted.seconds
        )
        feeding = loader if wanted.dtype != "uint8" else None
        if feeding is not None:
            probes["both", f"penstock + {name}"] = partial(
                training_times, model, settings, loader=feeding, seconds=wanted.seconds
            )
        return probes


def _summary(kind: str, name: str, results: list[Rate | StepTimes], note: str) -> Measured:
    steps = [result for result in results if isinstance(result, StepTimes)]
    rates = [r.images_per_s if isinstance(r, StepTimes) else r for r in results]
    medians = [rate.median for rate in rates if rate is not None]
    made = Measured.of(name, kind, medians or [0.0], note=note)
    return replace(made, wait_share=statistics.median(s.wait_share for s in steps)) if steps else made
