"""What to change, what that would give by the figures of the run itself, and which part of it the tool can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from penstock.bench.record.record import BenchRecord
from penstock.bench.verdict.figures import Figures

WORTH = 1.05  # a smaller gain is noise
LOADER, BOTH = "loader", "both"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What of a run is replaced, in words that the benchmark can act on itself; None is as it was.

    workers, decoder, dtype: of the loader; amp: of the model; cache: the loader reads a cache of this kind.
    """

    workers: int | None = None
    decoder: str | None = None
    dtype: str | None = None
    amp: Literal["bf16"] | None = None
    cache: Literal["lossless"] | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """what: to change; images_per_s: of `quantity` then, None where the run's figures do not tell; why: they do.

    quantity: "loader", or "both" for loader + model. change: the same for the benchmark, None for what it cannot do.
    """

    what: str
    images_per_s: float | None
    why: str
    quantity: str = LOADER
    change: Change | None = None


Offer = Callable[[BenchRecord, Figures], "Advice | None"]


def capped(figures: Figures, rate: float, *, without: str = "") -> tuple[float, str]:
    """`rate` of the loader, or the lowest other ceiling below it, and what that is."""
    ceilings = {"the feed": figures.feed, "reading from storage": figures.storage_cap}
    ceilings.pop(without, None)
    return lowest(rate, ceilings)


def lowest(rate: float, ceilings: dict[str, float | None]) -> tuple[float, str]:
    """`rate`, or the lowest of the named ceilings below it, and which that is."""
    name, least = min(((k, v) for k, v in ceilings.items() if v), key=lambda kv: kv[1], default=("", math.inf))
    return (rate, "") if rate <= least else (least, f"; then {name} limits")


def present(figures: Figures, quantity: str) -> float | None:
    """Images/s of `quantity` in this run."""
    return figures.both if quantity == BOTH else figures.loader


def cheaper(figures: Figures, part_s: float, shorter_s: float) -> float:
    """Images/s of the loader where a part of the work takes `shorter_s` seconds an image, not `part_s`, on one thread.

    What limits is the workers' time, or with as many workers as processors these: the part's share of it is saved.
    Where the run does not tell it, or tells less than the part alone takes, the part counts as all of it.
    """
    spent = figures.cpu_s if figures.workers >= figures.cpus else figures.time and figures.time.worker_s
    spent = max(spent or 0.0, part_s)
    return figures.loader * spent / (spent - part_s + shorter_s)
