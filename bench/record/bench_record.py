"""The record of what a benchmark run measured."""

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

OVER_TIME = ("loader", "other", "both", "baseline")  # kinds of measurement whose windows a record keeps
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
    """Hold one thing measured, in images/s.

    Attributes:
        kind: "ceiling", "loader", "other" (another backend's best), "baseline", "model" or "both".
        images_per_s: the median over rounds of each round's median; low, high: the spread over rounds.
        turns: number of the round of the run that each of `rounds` was made in; () in a record of an older version.
        wait_share: of "both", the share of the step spent waiting for data.
        note: what to know of how it was measured.
        resources: what the process tree took meanwhile, of "loader" and "both".
        workers: what the loader's workers did with their time meanwhile.
        traffic: what it fetched from remote storage meanwhile.
        over_time: of the kinds in OVER_TIME, each round's windows as (seconds, images/s).
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
        """Return the measurement whose rounds gave `rates`, in images/s."""
        median = statistics.median(rates)
        return cls(
            name=name, kind=kind, images_per_s=median, low=min(rates), high=max(rates), rounds=tuple(rates), **more
        )

    @property
    def by_turn(self) -> dict[int, float]:
        """Number of the round -> images/s in it."""
        return dict(zip(self.turns or range(len(self.rounds)), self.rounds, strict=True))

    @property
    def label(self) -> str:
        """What was measured, and how."""
        return f"{self.name}, {self.note}" if self.note else self.name


@dataclass(frozen=True, kw_only=True)
class Tried:
    """Hold one way of loading that the search looked at, by short measurements; None is what was not measured.

    Attributes:
        name: the way of loading in words.
        cached: whether it reads a cache.
        options: of the backend, workers among them.
        images_per_s, cpu_cores: rate, and processors kept busy.
        memory_mb: MB beyond what the process took before.
        why: the reason why it is out of the running, "" if it is not.
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
    """Hold what became of advice that the benchmark tried, alternating with the run as it was.

    Attributes:
        what: the change, in the words of the advice.
        quantity: what was measured, "loader" or "both" (loader + model).
        predicted: images/s before times the predicted gain; None where no gain was predicted.
        before, measured: images/s without and with the change, the medians of `rounds`.
        rounds: (images/s without, images/s with the change) of each round.
        note: what both were measured on, if not on the data.
        failed: the reason why there is no measurement, "" if there is one.
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
        """The rate after the change over the rate before it; None without a measurement."""
        return self.measured / self.before if self.before else None


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """Hold everything one run measured, and what it was measured on; `as_dict` and `read_record` are its JSON form.

    Attributes:
        workers, decoder: those of the loader.
        options: options of the loader that differ from the defaults of its backend.
        candidates: what the search tried.
        chosen: what to use; not the loader where the final rounds found another backend to be faster.
        applied: what became of the verdict's advice when it was taken.
        store: what remote storage gives without a loader; None for data on this machine.
        notes: what was left out, and why.
        ledger: number of epochs that the loader began, what became of their samples, and the bad ones, each once.
        verdict: what limits the run; None until it is judged, and in the record of a study.
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
        """The way of loading to use: `chosen`, or the loader that was measured."""
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
        """Return images/s of the first measurement of `kind` (and `name`), None if it was not made."""
        found = (m.images_per_s for m in self.measured if m.kind == kind and name in (None, m.name))
        return next(found, None)

    def ratios_to(self, other: Measured) -> list[float]:
        """Return the loader's images/s over those of `other`, one for each round that measured both."""
        loader = self.find("loader")
        mine, others = loader.by_turn if loader else {}, other.by_turn
        return [rate / others[turn] for turn, rate in mine.items() if others.get(turn)]

    def gain(self, advice: Advice) -> float | None:
        """Return the rate that `advice` predicts over this run's; None where one of them is unknown."""
        now = self.rate(advice.quantity)
        return advice.images_per_s / now if advice.images_per_s is not None and now else None

    def find(self, kind: str) -> Measured | None:
        """Return the first measurement of `kind`, None if there is none."""
        return next(iter(self.all_of(kind)), None)

    def all_of(self, kind: str) -> list[Measured]:
        """Return the measurements of `kind`, in their order."""
        return [m for m in self.measured if m.kind == kind]

    def as_dict(self) -> dict[str, object]:
        """Return the record as JSON holds it; of paths only the names, as records are shown around."""
        return asdict(replace(self, settings=self.settings.without_paths()))


def read_record(path: Path) -> BenchRecord:
    """Return the record that `penstock bench --json` wrote; what an older version did not write has its default.

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


# Names of the ceilings that are not of one decoder or one model.
READ_WARM, READ_COLD = "read, one thread, from the page cache", "read, one thread, from storage"
READ_MANY = "read, many threads at once"  # from storage where that can be had
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
    """Return the name of the ceiling of fetching with so many requests."""
    return f"{FETCH}, {requests:,} requests at a time"


def bf16_name(model: str) -> str:
    """Return the name of the ceiling of the model in mixed precision."""
    return f"{model} on a resident batch, bf16"


def replayed_model_name(model: str) -> str:
    """Return the name of the ceiling of training on replayed batches."""
    return f"{REPLAYED} + {model}"
