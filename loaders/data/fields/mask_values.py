"""Warns of masks whose only foreground value is the one that stands for "not labelled"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.masks import decode_mask
from penstock.pipelines.messages.user_warnings import warn_user

_LOOKED_AT = 8  # masks: a data set of binary ones shows it in each


def warn_of_ignored_foreground(name: str, read: Callable[[int], Any], count: int, ignore_index: int) -> None:
    """Warn where some masks hold 0 and `ignore_index` alone, as binary ones of 0 and 255 do: no pixel would count.

    read: returns the mask of a sample, encoded or as an array. A mask that cannot be read is left to who serves it.
    """
    found: set[int] = set()
    try:
        for index in np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(int)).tolist():
            found |= set(np.unique(decode_mask(read(index))).tolist())
            if not found <= {0, ignore_index}:
                return
    except (LoaderError, OSError, ValueError):
        return
    if ignore_index and found == {0, ignore_index}:
        warn_user(
            f"field {name!r}: the masks hold only 0 and {ignore_index}, and {ignore_index} is their ignore_index, so "
            "that a loss leaves the foreground out: save it as 1, or pass Masks(..., ignore_index=254)"
        )
