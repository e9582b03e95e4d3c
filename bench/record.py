"""What a benchmark run was asked to measure, and the record of what it measured."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from penstock.bench.resources import Resources
from penstock.bench.tuning import Options, Tuned

if TYPE_CHECKING:
    from penstock.bench.cache_advice import CacheAdvice

OVER_TIME = ("loader", "other", "both", "baseline")  # kinds of which a record tells how they went on
DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What to measure. seconds: of each measurement in each round; model None leaves the model out.

    cache: of the data, for the backends "hdf5" and "dali". entries: serve the data as so many images, again and again.
    tune: search the backend's knobs first; None does for "dali".
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
    tune: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.seconds <= 0 or self.rounds < 1:
            raise ValueError("seconds is above 0 and rounds at least 1")

    @property
    def tunes(self) -> bool:
        """Whether the knobs are searched."""
        return self.backend == "dali" if self.tune is None else self.tune


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One thing measured: images/s, the median over rounds of each round's median, and the spread over rounds.

    kind: "ceiling", "loader", "baseline", "model" or "both". wait_share: of "both", the share of the step spent waiting
    for data. note: what to know of how it was measured. resources: what the process tree took meanwhile, of
    "loader" and "both". over_time: of the kinds in OVER_TIME, each round's windows: seconds and images/s.
    """

    name: str
    kind: str
    images_per_s: float
    low: float
    high: float
    rounds: tuple[float, ...]
    wait_share: float | None = None
    note: str = ""
    resources: Resources | None = None
    over_time: tuple[tuple[tuple[float, float], ...], ...] = ()

    @classmethod
    def of(cls, name: str, kind: str, rates: list[float], **more: Any) -> Measured:
        """From the rates of the rounds."""
        median = statistics.median(rates)
        return cls(
            name=name, kind=kind, images_per_s=median, low=min(rates), high=max(rates), rounds=tuple(rates), **more
        )


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """Everything one run measured, and what it was measured on; JSON-serialisable by `as_dict`.

    workers: those of the loader; options: what else the search of knobs gave it beside the backend's defaults. notes:
    what was left out, and why. cache: what each kind of cache of the data would take and give, where that was measured.
    """

    settings: BenchSettings
    workers: int
    decoder: str
    data: dict[str, object]
    environment: dict[str, object]
    loader: dict[str, object]
    measured: tuple[Measured, ...] = field(default=())
    tuned: dict[str, Tuned] = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    cache: CacheAdvice | None = None

    def rate(self, kind: str, name: str | None = None) -> float | None:
        """Images/s of the first measurement of `kind` (and `name`), None if it was not made."""
        found = (m.images_per_s for m in self.measured if m.kind == kind and name in (None, m.name))
        return next(found, None)

    def find(self, kind: str) -> Measured | None:
        """The first measurement of `kind`."""
        return next(iter(self.all_of(kind)), None)

    def all_of(self, kind: str) -> list[Measured]:
        """The measurements of `kind`."""
        return [m for m in self.measured if m.kind == kind]

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable; of the cache's path only the name, for records that are shown around."""
        document = asdict(self)
        if self.settings.cache is not None:
            document["settings"]["cache"] = Path(self.settings.cache).name
        return document


# What the other ceilings are called.
READ_WARM, READ_COLD = "read, one thread, from the page cache", "read, one thread, from storage"
DECODE, RESIZE = "decode alone, one thread", "resize alone, one thread"
COPY, COPY_AND_NORMALISE, NORMALISE = "copy to device", "copy to device + normalise", "normalise"
LOSSLESS_CACHE = "decode + resize of a lossless cache, one thread"
REPLAYED = "replayed batches (loader removed)"


def decode_name(decoder: str) -> str:
    """What the ceiling of `decoder` is called."""
    return f"decode + resize, {decoder}, one thread"


def decode_ceilings(record: BenchRecord) -> dict[str, float]:
    """Name -> images/s of the ceilings of all decoders."""
    prefix = decode_name("@").partition("@")[0]
    return {m.name: m.images_per_s for m in record.all_of("ceiling") if m.name.startswith(prefix)}


def replayed_model_name(model: str) -> str:
    """What the ceiling of training on replayed batches is called."""
    return f"{REPLAYED} + {model}"
