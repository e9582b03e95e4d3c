"""Warn of module globals that the program has set and that workers do not see, because they import the modules anew."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import PurePath
from typing import Any

from penstock.loaders.drop_in.globals_read import GlobalsRead, Place, value_at

_SHORT = 64  # characters or parts of a value that are compared

_sent: set[tuple[Any, ...]] = set()


def new_globals(dataset: Any, collate_fn: Any, worker_init_fn: Any) -> dict[Place, str]:
    """Return what can be compared of the globals that the code reads, but for those that were returned for it before.

    It returns none where that fails: it looks at the user's objects, which may do anything.
    """
    with contextlib.suppress(Exception):
        read = GlobalsRead(dataset, collate_fn, worker_init_fn).values
        known = {place: comparable(value) for place, value in read.items()}
        reader = type(dataset), id(worker_init_fn)
        new = {place: value for place, value in known.items() if (reader, place, value) not in _sent}
        _sent.update((reader, *item) for item in new.items())
        return new
    return {}


def warn_of_lost_globals(program: dict[Place, str]) -> None:
    """Warn, in a worker, of globals that are not what they are in the program. Their values may be secret."""
    lost = []
    with contextlib.suppress(Exception):
        for place, value in program.items():
            if place[0] not in sys.modules:  # it is imported when it is needed
                continue
            try:
                same = comparable(value_at(place)) == value
            except KeyError:
                same = False
            if not same:
                lost.append(".".join(place))
    if lost:
        warnings.warn(
            f"workers that are not forked import the modules anew and do not see what the program has set since: "
            f"{', '.join(sorted(lost))}. Pass such values to the data set, or set them in worker_init_fn",
            UserWarning,
            stacklevel=2,
        )


def comparable(value: Any) -> str:
    """Return a short text that differs where plain values do, the lengths of containers or the types of others."""
    kind = type(value)
    text = kind.__qualname__
    if kind in (bool, float, complex) or (kind is int and value.bit_length() <= _SHORT):
        text += f" {value}"
    elif kind is int:
        text += f" of {value.bit_length()} bits"
    elif kind in (str, bytes, list, dict, set, frozenset):
        text += f" of {len(value)}"
    if kind in (str, bytes):
        text += f" {value[:_SHORT]!a}"
    elif issubclass(kind, PurePath):
        text += f" {str(value)!a}"
    elif kind is tuple:
        text += f" of {len(value)}: " + ", ".join(comparable(part) for part in value[:_SHORT])
    return text
