"""Reads batch and image sizes that change by epoch or update, as users give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.loaders.make.sizes.aspect_buckets import checked_size
from penstock.loaders.order.epoch_steps import Size
from penstock.loaders.order.schedule import Phase
from penstock.loaders.order.state import NUM_EPOCHS
from penstock.pipelines.messages.checked import checked_int, shown

DEFAULT_BATCH = 256
_MAX_UPDATES = 1 << 62


@dataclass(frozen=True)
class ByUpdate:
    """Ask for sizes that change at batches of the run, such as ByUpdate({0: 128, 5000: 160}).

    A run counts its batches from 0 through all epochs. A change in the middle of an epoch leaves the order of the
    samples as it is: each is still served once. Raises ValueError for anything but a dict.

    Attributes:
        values: of the number of each batch at which a size changes, the size from there on.
    """

    values: Mapping[int, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping):
            raise ValueError(f"ByUpdate must hold a dict, such as {{0: 128, 5000: 160}}, got {shown(self.values)}")


def make_phases(batch_size: Any, sizes: Any, size: Size) -> tuple[int, tuple[Phase, ...]]:
    """Return the largest batch size, and batch and image size by epoch or update: () if neither changes.

    batch_size: one number, or of each first epoch that of the epochs from it on. sizes: the same for image sizes, each
    a side or (height, width); None for `size` throughout. Either may be a ByUpdate. Raises ValueError.
    """
    given = [each for each in (batch_size, sizes) if isinstance(each, (Mapping, ByUpdate))]
    if sizes is None and not given:
        return checked_int("batch_size", batch_size, 1), ()
    if sizes is not None and not isinstance(sizes, (Mapping, ByUpdate)):
        raise ValueError(f"sizes must be a dict of first epoch -> size, such as {{0: 128, 6: 224}}, got {shown(sizes)}")
    by_update = isinstance(given[0], ByUpdate)
    if any(isinstance(each, ByUpdate) != by_update for each in given):
        raise ValueError("sizes and batch_size must both change by epoch, or both by update: make both ByUpdate(...)")
    number_changes = isinstance(batch_size, (Mapping, ByUpdate))
    numbers = _by_first("batch_size", batch_size if number_changes else {0: batch_size})
    shapes = _by_first("sizes", {0: size} if sizes is None else sizes)
    phases = []
    for place in sorted({*numbers, *shapes}):
        number, shape = (named[max(first for first in named if first <= place)] for named in (numbers, shapes))
        number, shape = checked_int("batch_size", number, 1), checked_size("sizes", shape)
        phases.append(Phase(place, number, shape, by_update))
    return max(phase.batch_size for phase in phases), tuple(phases)


def _by_first(name: str, values: Any) -> dict[int, Any]:
    unit, most = ("batch", _MAX_UPDATES) if isinstance(values, ByUpdate) else ("epoch", NUM_EPOCHS - 1)
    values = values.values if isinstance(values, ByUpdate) else values
    named = {checked_int(f"{name} ({unit})", first, 0, most): value for first, value in values.items()}
    if 0 not in named:
        raise ValueError(f"{name} must say what holds from {unit} 0 on, got {shown(values)}")
    return named
