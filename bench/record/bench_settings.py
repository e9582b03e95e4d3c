"""Defines BenchSettings: what a benchmark run is asked to measure."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from penstock.bench.record.settings import (
    POSITIVE,
    BatchSize,
    Decoder,
    MaxBad,
    Seconds,
    Seed,
    Size,
    Workers,
    check_fields,
    one_of,
    setting,
)

ALL_BACKENDS = "all"
SEARCH_SHARE = 0.4  # of a run's budget
DTYPE_NAMES = ("uint8", "float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Say what to measure; each field is an option of `penstock bench`.

    Attributes:
        model: what to train on the batches; None leaves the model out.
        budget: None measures `rounds` rounds of `seconds`, however long they take.
        seconds: with a budget at most.
        rounds: None makes 3, with a budget as many as there is time for until the spread is small.
        tune: None searches for "all" and "dali", and where there is a limit.
        tune_seconds: None takes 60, or a share of the budget.
        max_bad: None for all.
        data_options: options of open_source for the data.
    """

    backend: str = setting(
        ALL_BACKENDS, "all (those that run here, compared), torch, hdf5, dali, or auto: the saved profile."
    )
    cache: str | None = setting(None, "HDF5 cache of DATA, for backends hdf5 and dali; built if it does not exist.")
    entries: int | None = setting(None, "Serve DATA repeatedly, as so many images.", min=1)
    decoder: Decoder = "auto"
    batch_size: BatchSize = 64
    size: Size = 224
    workers: Workers = None
    device: str = "cpu"
    dtype: str = setting(
        "float32",
        "dtype of the images: float32, float16, bfloat16, uint8.",
        one_of(DTYPE_NAMES),
        asked=None,
        show_default="what the model computes in, by --amp",
    )
    model: str | None = setting(
        "resnet18", "resnet18, resnet50, a timm name, or none.", asked=None, show_default="resnet18 on a GPU, else none"
    )
    amp: Literal["off", "bf16", "fp16"] = setting("off", "Mixed precision of the model: off, bf16 or fp16.")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = setting(
        "off", "torch.compile of the model: off, default, reduce-overhead or max-autotune."
    )
    budget: float | None = setting(None, "Seconds that the whole run may take.", min=1, asked=120.0)
    seconds: Seconds = 4.0
    rounds: int | None = setting(
        None, "Rounds at most.", min=1, show_default="until they agree, or time is up; 3 with --thorough"
    )
    baseline: bool = setting(False, "Also measure the usual loader: torch's DataLoader with Pillow.")
    tune: bool | None = setting(None, "Search the settings first.", show_default="on for all, dali, and with a limit")
    tune_seconds: float | None = setting(
        None, "How long that search may take.", POSITIVE, show_default="0.4 of the budget; 60 with --thorough"
    )
    max_cpu: float | None = setting(None, "Most processors that the loader may keep busy.", POSITIVE, metavar="CORES")
    max_memory: float | None = setting(
        None, "Most memory that the loader and its workers may take.", POSITIVE, metavar="MB"
    )
    apply: bool = setting(False, "Try the verdict's advice where the tool can; measure it.", asked=True)
    seed: Seed = 0
    max_bad: MaxBad = 0.01
    data_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.tune is False and self._has_limits:
            raise ValueError("only the search keeps to limits: leave out --no-tune, or --max-cpu and --max-memory")

    @property
    def _has_limits(self) -> bool:
        return self.max_cpu is not None or self.max_memory is not None

    def without_paths(self) -> BenchSettings:
        """Return the settings with the names alone of what may be paths, as records are shown around."""
        given = self.data_options.items()
        options = {name: Path(value).name if isinstance(value, str) else value for name, value in given}
        cache = self.cache and os.fsencode(Path(self.cache).name).decode(errors="backslashreplace")
        return replace(self, cache=cache, data_options=options)

    @property
    def search_seconds(self) -> float:
        """Return how long the search of settings may take."""
        return self.tune_seconds or (60.0 if self.budget is None else SEARCH_SHARE * self.budget)

    @property
    def most_rounds(self) -> float:
        """Return the number of rounds to make at most."""
        return self.rounds or (3 if self.budget is None else math.inf)

    @property
    def tunes(self) -> bool:
        """Whether settings are searched."""
        return self.backend in (ALL_BACKENDS, "dali") or self._has_limits if self.tune is None else self.tune
