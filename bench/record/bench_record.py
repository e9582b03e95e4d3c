"""The record of a benchmark run."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from penstock.bench.record.advice import Advice, Verdict
from penstock.bench.record.loader_time import StoreTime, Traffic, WorkerTime
from penstock.bench.record.resources import Resources
from penstock.bench.record.settings import BenchSettings
from penstock.loaders.system.json_file import decode_json

KnobValue = int | float | str | None
Options = dict[str, KnobValue]

OVER_TIME = ("loader", "other", "both", "baseline")  # kinds of measurement with windows in the record
KIND_NAMES = {
    "loader": "loader",
    "both": "loader + model",
    "other": "other loader",
    "baseline": "baseline",
    "model": "model",
    "ceiling": "ceiling",
}
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Hold one measurement, in images/s.

    Attributes:
        kind: "ceiling", "loader", "other" (another backend's best), "baseline", "model" or "both".
        images_per_s: the median over rounds of each round's median; low, high: the spread over rounds.
        turns: the run's round number of each of `rounds`; () in a record of an older version.
        wait_share: for "both", the share of the step spent waiting for data.
        note: conditions of the measurement.
        resources: use of the machine by the process tree, for "loader" and "both".
        workers: how the loader's workers spent their time.
        traffic: data fetched from remote storage.
        over_time: for the kinds in OVER_TIME, each round's windows as (seconds, images/s).
    """

    name: str
    kind: str
    images_per_s: float
    low: float
    high: float
    rounds: tuple[float, ...]
    turns: tuple[int, ...] = ()
    wait_share: float | None = None
    note: str = ""
    resources: Resources | None = None
    workers: WorkerTime | None = None
    traffic: Traffic | None = None
    over_time: tuple[tuple[tuple[float, float], ...], ...] = ()

    @classmethod
    def of(cls, name: str, kind: str, rates: list[float], **more: Any) -> Measured:
        """Return the measurement with these images/s per round."""
        median = statistics.median(rates)
        return cls(
            name=name, kind=kind, images_per_s=median, low=min(rates), high=max(rates), rounds=tuple(rates), **more
        )

    @property
    def by_turn(self) -> dict[int, float]:
        """Round number -> images/s."""
        return dict(zip(self.turns or range(len(self.rounds)), self.rounds, strict=True))

    @property
    def label(self) -> str:
        """Name and conditions of the measurement."""
        return f"{self.name}, {self.note}" if self.note else self.name


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Hold one way of loading that the search tried in short measurements; None was not measured.

    Attributes:
        name: the way of loading as text.
        cached: whether it reads a cache.
        options: options of the backend, including workers.
        images_per_s, cpu_cores: rate and busy processors.
        memory_mb: MB in addition to the process's memory before.
        why: why it cannot be chosen, "" if it can.
    """

    name: str
    backend: str
    decoder: str
    cached: bool
    options: Options
    images_per_s: float | None = None
    cpu_cores: float | None = None
    memory_mb: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class TriedAdvice:
    """Hold the result of advice that the benchmark tried, alternating with the unchanged run.

    Attributes:
        what: the change, as in the advice.
        quantity: "loader" or "both" (loader + model).
        predicted: images/s before, times the predicted gain; None without a prediction.
        before, measured: images/s without and with the change, the medians of `rounds`.
        rounds: (images/s without, images/s with the change) of each round.
        note: the data of both measurements, if not the run's data.
        failed: why there is no measurement, "" if there is one.
    """

    what: str
    quantity: str
    predicted: float | None
    before: float = 0.0
    measured: float = 0.0
    rounds: tuple[tuple[float, float], ...] = ()
    note: str = ""
    failed: str = ""

    @property
    def gain(self) -> float | None:
        """The rate after the change divided by the rate before; None without a measurement."""
        return self.measured / self.before if self.before else None


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """Hold all measurements of one run and their conditions; `as_dict` and `read_record` convert to and from JSON.

    Attributes:
        workers, decoder: arguments of the loader.
        options: options of the loader that differ from the defaults of its backend.
        candidates: the ways of loading that the search tried.
        chosen: the recommended candidate; not the loader if another backend was faster in the final rounds.
        applied: the results of trying the verdict's advice.
        store: the rate of remote storage without a loader; None for local data.
        notes: what was left out and why.
        ledger: the loader's number of started epochs, counts of samples, and the bad ones, each once.
        verdict: the limit of the run; None until it is judged, and in the record of a study.
    """

    settings: BenchSettings
    workers: int
    decoder: str
    data: dict[str, object]
    environment: dict[str, object]
    loader: dict[str, object]
    measured: tuple[Measured, ...] = field(default=())
    candidates: tuple[Tried, ...] = ()
    chosen: Tried | None = None
    options: Options = field(default_factory=dict)
    store: StoreTime | None = None
    notes: tuple[str, ...] = ()
    applied: tuple[TriedAdvice, ...] = ()
    ledger: dict[str, Any] | None = None
    verdict: Verdict | None = None

    @property
    def choice(self) -> Tried:
        """The recommended way of loading: `chosen`, or the measured loader."""
        if self.chosen is not None:
            return self.chosen
        backend = str(self.loader.get("backend", self.settings.backend))
        return Tried(
            name=backend,
            backend=backend,
            decoder=self.decoder,
            cached=self.settings.cache is not None,
            options={"workers": self.workers, **self.options},
            images_per_s=self.rate("loader"),
        )

    def rate(self, kind: str, name: str | None = None) -> float | None:
        """Return images/s of the first measurement of `kind` (and `name`), None if there is none."""
        found = (m.images_per_s for m in self.measured if m.kind == kind and name in (None, m.name))
        return next(found, None)

    def ratios_to(self, other: Measured) -> list[float]:
        """Return the loader's images/s divided by those of `other`, for each round that measured both."""
        loader = self.find("loader")
        mine, others = loader.by_turn if loader else {}, other.by_turn
        return [rate / others[turn] for turn, rate in mine.items() if others.get(turn)]

    def gain(self, advice: Advice) -> float | None:
        """Return the predicted rate of `advice` divided by this run's; None if one of them is unknown."""
        now = self.rate(advice.quantity)
        return advice.images_per_s / now if advice.images_per_s is not None and now else None

    def find(self, kind: str) -> Measured | None:
        """Return the first measurement of `kind`, None if there is none."""
        return next(iter(self.all_of(kind)), None)

    def all_of(self, kind: str) -> list[Measured]:
        """Return the measurements of `kind`, in their order."""
        return [m for m in self.measured if m.kind == kind]

    def as_dict(self) -> dict[str, object]:
        """Return the record for JSON; of paths it contains only the names, because records are shared."""
        return asdict(replace(self, settings=self.settings.without_paths()))


def read_record(path: Path) -> BenchRecord:
    """Return the record that `penstock bench --json` wrote; fields missing in older versions have their defaults.

    Raises ValueError for another file, OSError.
    """
    try:
        record = decode_json(path.read_bytes(), BenchRecord)
        if not isinstance(record.environment.get("cpus"), int):
            raise ValueError("its environment has no number of processors, `cpus`")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such record: `penstock bench DATA --json FILE` writes one") from None
    except ValueError as error:
        raise ValueError(f"{path}: not a record of `penstock bench` ({error})") from None
    return record


# Names of the ceilings that do not depend on a decoder or a model.
READ_WARM, READ_COLD = "read, one thread, from the page cache", "read, one thread, from storage"
READ_MANY = "read, many threads at once"  # from storage where possible
FETCH = "fetch from remote storage"
DECODE, RESIZE = "decode alone, one thread", "resize alone, one thread"
COPY, COPY_AND_NORMALISE, NORMALISE = "copy to device", "copy to device + normalise", "normalise"
LOSSLESS_CACHE = "decode + resize of a lossless cache, one thread"
REPLAYED = "replayed batches (loader removed)"


def decode_name(decoder: str) -> str:
    """Return the name of the ceiling of `decoder`."""
    return f"decode + resize, {decoder}, one thread"


def decode_ceilings(record: BenchRecord) -> dict[str, float]:
    """Return name -> images/s of the ceilings of all decoders."""
    prefix = decode_name("@").partition("@")[0]
    return {m.name: m.images_per_s for m in record.all_of("ceiling") if m.name.startswith(prefix)}


def fetch_name(requests: int) -> str:
    """Return the name of the ceiling of fetching with this many requests."""
    return f"{FETCH}, {requests:,} requests at a time"


def bf16_name(model: str) -> str:
    """Return the name of the ceiling of the model in mixed precision."""
    return f"{model} on a resident batch, bf16"


def replayed_model_name(model: str) -> str:
    """Return the name of the ceiling of training on replayed batches."""
    return f"{REPLAYED} + {model}"
