"""Mixes sources by shares: each epoch holds a fixed number of samples of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data
from penstock.loaders.data.sources.step import MixtureShares
from penstock.pipelines.messages.checked import shown


def mix_sources(sources: Mapping[str, Source], shares: tuple[tuple[float, ...], ...]) -> Data:
    """Return several sources as one, whose shuffled order takes a fixed share of each."""
    mixture = MixtureShares(tuple(sources), tuple(map(len, sources.values())), shares)
    return Data(list(sources.values()), joined=True, mixture=mixture)


def checked_shares(shares: Mapping[str, object]) -> tuple[tuple[float, ...], ...]:
    """Return the shares of each epoch. shares: by name a number, or a sequence of numbers, one per epoch.

    Raises ValueError.
    """
    schedules = {name: _checked_schedule(name, share) for name, share in shares.items()}
    num_epochs = max(map(len, schedules.values()))
    epochs = [
        tuple(schedule[min(epoch, len(schedule) - 1)] for schedule in schedules.values()) for epoch in range(num_epochs)
    ]
    for epoch, of_epoch in enumerate(epochs):
        if not sum(of_epoch):
            raise ValueError(f"the shares of a mix must not all be 0, got that for epoch {epoch}")
    return tuple(epochs)


def _checked_schedule(name: str, share: Any) -> list[float]:
    values = list(share) if isinstance(share, Sequence) and not isinstance(share, str) else [share]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ValueError(f"the share of {name!r} must be a number or a list of numbers, got {shown(share)}")
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"the share of {name!r} must be finite and at least 0, got {shown(share)}")
    if not values:
        raise ValueError(f"the share of {name!r} must be a number or a list of numbers, got {shown(share)}")
    return [float(value) for value in values]
