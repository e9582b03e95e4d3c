"""The verdict on a run and the advice that follows from it, as a record holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOADER, BOTH = "loader", "both"  # kinds of measurement that advice is about


@dataclass(frozen=True, kw_only=True)
class Change:
    """Say what of a run to replace, in terms that the benchmark can act on itself; None leaves it as it was.

    Attributes:
        workers, decoder, dtype: of the loader.
        amp: mixed precision of the model.
        cache: the loader reads a cache of this kind.
        requests, bytes_ahead, shuffle: arguments of create_loader.
    """

    workers: int | None = None
    decoder: str | None = None
    dtype: str | None = None
    amp: Literal["bf16"] | None = None
    cache: Literal["lossless"] | None = None
    requests: int | None = None
    bytes_ahead: int | None = None
    shuffle: Literal["blocks"] | None = None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Say what to change in a run, and what that would give.

    Attributes:
        what: the change in words.
        images_per_s: predicted rate of `quantity` after it; None if the run's figures do not give one.
        why: the figures that the advice follows from.
        quantity: "loader", or "both" for loader + model.
        change: `what` in terms that the benchmark can act on; None for what it cannot do.
    """

    what: str
    images_per_s: float | None
    why: str
    quantity: str = LOADER
    change: Change | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Name what limits a run, and what to change.

    Attributes:
        limit: "model", "consumer", "transfer", "latency" or "bandwidth" of the network, "storage", "decode", "resize",
            "cpu" or "loader".
        sentence: the verdict in one line for people.
        advice: what to change, the greatest gain first; None in a record of a version that gave none.
        call: Python code that opens the recommended loader; "" in a record of a version that gave none.
    """

    limit: str
    sentence: str
    advice: tuple[Advice, ...] | None = None
    call: str = ""
