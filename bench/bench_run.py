"""One benchmark run: loader, model and ceilings measured in turn, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from penstock.bench.baseline import baseline_loader
from penstock.bench.ceilings import DecodeCeiling, read_rate, transfer_rate, usable_decoders
from penstock.bench.environment import describe_environment
from penstock.bench.measure import Rate, StepTimes
from penstock.bench.models import create_model
from penstock.bench.rates import loader_rate, resident_batch_rate, training_times
from penstock.bench.repeated_source import repeated
from penstock.bench.train_settings import TrainSettings
from penstock.loaders.create import create_loader
from penstock.loaders.hdf5_loader import prepare_source
from penstock.loaders.loader import Loader
from penstock.loaders.machine import default_workers
from penstock.loaders.source import Source, open_source
from penstock.pipelines.spec import ImagePipeline, imagenet_train

DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What to measure. seconds: of each measurement in each round; model None leaves the model out.

    cache: of the data, for backend "hdf5". entries: serve the data as so many images, again and again.
    """

    backend: str = "torch"
    cache: str | None = None
    entries: int | None = None
    decoder: str = "auto"
    batch_size: int = 64
    size: int = 224
    workers: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    model: str | None = "resnet18"
    amp: Literal["off", "bf16", "fp16"] = "off"
    seconds: float = 4.0
    rounds: int = 3
    baseline: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.seconds <= 0 or self.rounds < 1:
            raise ValueError("seconds is above 0 and rounds at least 1")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One thing measured: images/s, the median over rounds of each round's median, and the spread over rounds.

    kind: "ceiling", "loader", "baseline", "model" or "both". wait_share: of "both", the share of the step spent waiting
    for data.
    """

    name: str
    kind: str
    images_per_s: float
    low: float
    high: float
    rounds: tuple[float, ...]
    wait_share: float | None = None
    note: str = ""

    @classmethod
    def of(cls, name: str, kind: str, rates: list[float], **more: Any) -> Measured:
        """From the rates of the rounds."""
        median = statistics.median(rates)
        return cls(
            name=name, kind=kind, images_per_s=median, low=min(rates), high=max(rates), rounds=tuple(rates), **more
        )


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """Everything one run measured, and what it was measured on; JSON-serialisable by `as_dict`."""

    settings: BenchSettings
    workers: int
    decoder: str
    data: dict[str, object]
    environment: dict[str, object]
    loader: dict[str, object]
    measured: tuple[Measured, ...] = field(default=())

    def rate(self, kind: str, name: str | None = None) -> float | None:
        """Images/s of the first measurement of `kind` (and `name`), None if it was not made."""
        found = (m.images_per_s for m in self.measured if m.kind == kind and name in (None, m.name))
        return next(found, None)

    def find(self, kind: str) -> Measured | None:
        """The first measurement of `kind`."""
        return next((m for m in self.measured if m.kind == kind), None)

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable; of the cache's path only the name, for records that are shown around."""
        document = asdict(self)
        if self.settings.cache is not None:
            document["settings"]["cache"] = Path(self.settings.cache).name
        return document


def decode_name(decoder: str) -> str:
    """What the ceiling of `decoder` is called."""
    return f"decode + resize, {decoder}, one thread"


Probe = Callable[[], "Rate | StepTimes"]


class BenchRun:
    """Measures what the settings ask for; `progress(done, total, what)` is called before each measurement."""

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

    def _to_serve(self) -> Source:
        """What the loader reads: the data or its cache. The baseline always reads the data."""
        served = self.source
        if self.settings.cache is not None:
            served = prepare_source(served, self.settings.cache)
        return self._at_length(served)

    def _at_length(self, source: Source) -> Source:
        return source if self.settings.entries is None else repeated(source, self.settings.entries)

    def run(self) -> BenchRecord:
        """Every measurement in turn, `rounds` times over, so that a drift of the machine's speed touches all alike."""
        with ExitStack() as stack:
            loader = self._open(stack)
            probes = self._probes(stack, loader)
            results: dict[tuple[str, str], list[Rate | StepTimes]] = {key: [] for key in probes}
            total = len(probes) * self.settings.rounds
            for done in range(total):
                key = list(probes)[done % len(probes)]
                self._progress(done, total, key[1])
                results[key].append(probes[key]())
            measured = tuple(_summary(kind, name, rates) for (kind, name), rates in results.items())
            return BenchRecord(
                settings=self.settings,
                workers=self.workers,
                decoder=str(loader.describe()["decoder"]),
                data={
                    "summary": self._served.describe(),
                    "images": len(self._served),
                    "fingerprint": self._served.fingerprint,
                },
                environment=describe_environment(),
                loader=loader.describe(),
                measured=measured,
            )

    def _open(self, stack: ExitStack) -> Loader:
        wanted = self.settings
        return stack.enter_context(
            create_loader(
                self._served,
                backend=wanted.backend,
                pipeline=self.pipeline,
                batch_size=wanted.batch_size,
                device=wanted.device,
                dtype=DTYPES[wanted.dtype],
                seed=wanted.seed,
                decoder=wanted.decoder,
                on_bad_sample="replace",
                workers=self.workers,
            )
        )

    def _probes(self, stack: ExitStack, loader: Loader) -> dict[tuple[str, str], Probe]:
        wanted, seconds = self.settings, self.settings.seconds
        probes: dict[tuple[str, str], Probe] = {}
        chosen = usable_decoders() if wanted.decoder == "auto" else [wanted.decoder]
        for name in chosen:
            ceiling = DecodeCeiling(self._served, self.pipeline, name, wanted.seed)
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
            probes["baseline", "torch DataLoader + Pillow"] = self._baseline(stack)
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
        stack.callback(_end_workers, loader)
        return partial(loader_rate, _OnDevice(loader, wanted.device), seconds=wanted.seconds, device=wanted.device)

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


class _OnDevice:
    """Iterates a host loader with its batches moved to the device, as everyone writes it."""

    def __init__(self, loader: Any, device: str) -> None:
        self._loader, self._device = loader, device

    def __iter__(self) -> Any:
        for batch in self._loader:
            yield tuple(part.to(self._device, non_blocking=True) for part in batch)


def _end_workers(loader: Any) -> None:
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def _summary(kind: str, name: str, results: list[Rate | StepTimes]) -> Measured:
    steps = [result for result in results if isinstance(result, StepTimes)]
    rates = [r.images_per_s if isinstance(r, StepTimes) else r for r in results]
    medians = [rate.median for rate in rates if rate is not None]
    made = Measured.of(name, kind, medians or [0.0])
    return replace(made, wait_share=statistics.median(s.wait_share for s in steps)) if steps else made
