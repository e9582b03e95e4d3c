"""The verdict on a run and its advice, as stored in a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LOADER, BOTH = "loader", "both"  # kinds of measurement that advice refers to


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that the benchmark can make itself; None leaves a setting unchanged.

    Attributes:
        workers, decoder, dtype: arguments of the loader.
        amp: mixed precision of the model.
        cache: kind of cache that the loader reads.
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
    """A change of a run and its predicted rate.

    Attributes:
        what: the change as text.
        images_per_s: predicted rate of `quantity` after the change; None if it cannot be predicted.
        why: the figures behind the advice.
        quantity: "loader", or "both" for loader + model.
        change: `what` for the benchmark itself; None if it cannot make the change.
    """

    what: str
    images_per_s: float | None
    why: str
    quantity: str = LOADER
    change: Change | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The limit of a run and the advice.

    Attributes:
        limit: "model", "consumer", "transfer", "latency" or "bandwidth" (network), "storage", "decode", "resize",
            "cpu" or "loader".
        sentence: the verdict in one line for people.
        advice: largest gain first; None in a record of an older version without advice.
        call: Python code that opens the recommended loader; "" in a record of an older version without it.
    """

    limit: str
    sentence: str
    advice: tuple[Advice, ...] | None = None
    call: str = ""
