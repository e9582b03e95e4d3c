"""Checks of the settings of ImagePipeline that have a value for each channel."""

from __future__ import annotations

from functools import partial
from typing import Any

from penstock.pipelines.messages.checked import checked_int, checked_number, checked_tuple, shown

_LARGEST_MOMENT = 4.0  # above any mean or std of pixels from 0 to 1, and below those of levels up to 255


def checked_moments(name: str, value: Any, count: int, depth: int, above: float | None = None) -> tuple[float, ...]:
    """Return one number for each of `count` channels; with depth=32 on any scale."""
    if count == 1:
        if isinstance(value, (tuple, list)) and len(value) == 3:
            raise ValueError(
                f"{name} must be one number with channels=1, got {shown(value)}: mean=0.449, std=0.226 suits"
            )
        value = value if isinstance(value, (tuple, list)) else (value,)
    if count not in (1, 3) and not (hasattr(value, "__len__") and len(value) == count):
        fix = "`penstock stats DATA` and channel_statistics(data) compute them"
        raise ValueError(f"{name} must have {count} numbers with channels={count}, got {shown(value)}: {fix}")
    moments = checked_tuple(name, value, _channel_names(count), partial(checked_number, above=above))
    if depth != 32 and max(map(abs, moments)) > _LARGEST_MOMENT:
        highest = 2**depth - 1
        raise ValueError(f"{name} must be on the scale from 0 to 1, got {shown(value)}: divide it by {highest}")
    return moments


def _channel_names(count: int) -> tuple[str, ...]:
    return {1: ("grey",), 3: ("red", "green", "blue")}.get(count) or tuple(f"channel {n}" for n in range(count))


def checked_fill(value: Any, channels: int, depth: int) -> tuple[int | float, ...]:
    """Return the levels of red, green and blue; for channels as stored, one number for each."""
    if not keeps_channels(channels, depth):
        levels = value if isinstance(value, (tuple, list)) else (value,) * 3
        return checked_tuple("fill", levels, ("red", "green", "blue"), partial(checked_int, low=0, high=255))
    default = isinstance(value, tuple) and value == (0, 0, 0)
    levels = (0,) * channels if default else value if isinstance(value, (tuple, list)) else (value,) * channels
    check = checked_number if depth == 32 else partial(checked_int, low=0, high=255)
    return checked_tuple("fill", levels, _channel_names(channels), check)


def keeps_channels(channels: int, depth: int) -> bool:
    """Return whether images keep their channels as stored."""
    return channels not in (1, 3) or depth == 32
