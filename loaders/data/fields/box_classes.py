"""Numbers the classes of boxes, which are given by name or by number."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.messages.checked import shown

_WHOLE = re.compile(r"[+-]?[0-9]+")
Label = tuple[int, Any]  # of a box: the number of its sample, and its class


def checked_names(names: Any) -> tuple[bytes, ...] | None:
    """Return class names by number, of a list or of a dict of number -> name; None for None. Raises ValueError."""
    if names is None:
        return None
    listed = names.tolist() if hasattr(names, "tolist") else names  # an array, or a column of a data frame
    if isinstance(names, Mapping):
        if set(names) != set(range(len(names))):
            raise ValueError(f"names must have the numbers from 0 to {len(names) - 1}, got {shown(list(names))}")
        listed = [names[number] for number in range(len(names))]
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, (str, bytes)) for each in listed):
        raise ValueError(f"names must be a list of class names or a dict of number -> name, got {shown(names)}")
    return tuple(map(os.fsencode, listed))


def number_classes(
    of_each: Sequence[Sequence[Any]], names: Sequence[str] | Mapping[int, str] | None
) -> tuple[npt.NDArray[np.int64], tuple[bytes, ...]]:
    """Return the class numbers of all boxes, and what they are called: `names`, or names sorted.

    Text of digits is a number, unless `names` has numbers. Raises ValueError for names among numbers, and for a box
    without a class.
    """
    known = checked_names(names)
    flat = [(index, label) for index, labels in enumerate(of_each) for label in labels]
    for index, label in flat:
        if label is None or label != label:  # NaN
            raise ValueError(f"sample {index} has a box without a class: give each box one")
    have_numbers = any(_WHOLE.fullmatch(os.fsdecode(name)) for name in known or ())
    are_names = [
        isinstance(label, (str, bytes)) and (have_numbers or not _WHOLE.fullmatch(os.fsdecode(label)))
        for _, label in flat
    ]
    if any(are_names):
        if not all(are_names):
            (named, name), (numbered, number) = (flat[are_names.index(is_name)] for is_name in (True, False))
            raise ValueError(
                f"sample {named} has a box of the class {shown(name)}, and sample {numbered} one of {shown(number)}: "
                "give all boxes class names, or all class numbers"
            )
        return _number_names([(index, os.fsencode(name)) for index, name in flat], known)
    return _check_numbers(flat, None if known is None else len(known)), known or ()


def _number_names(
    flat: Sequence[tuple[int, bytes]], names: tuple[bytes, ...] | None
) -> tuple[npt.NDArray[np.int64], tuple[bytes, ...]]:
    known = tuple(sorted({label for _, label in flat})) if names is None else names
    number_of = {name: number for number, name in enumerate(known)}
    if len(number_of) < len(known):
        twice = next(name for number, name in enumerate(known) if number_of[name] != number)
        raise ValueError(f"names must be different where boxes have names, got {shown(os.fsdecode(twice))} twice")
    for index, label in flat:
        if label not in number_of:
            raise ValueError(
                f"sample {index} has a box of the unknown class {shown(os.fsdecode(label))}: add it to names"
            )
    return np.array([number_of[label] for _, label in flat], np.int64), known


def _check_numbers(flat: Sequence[Label], count: int | None) -> npt.NDArray[np.int64]:
    highest = np.inf if count is None else count - 1
    numbers = [(index, int(label) if isinstance(label, (str, bytes)) else label) for index, label in flat]
    for index, label in numbers:
        if not isinstance(label, (int, np.integer)) or not 0 <= label <= highest:
            wanted = "at least 0" if count is None else f"from 0 to {highest}"
            raise ValueError(f"sample {index} has a box of class {shown(label)}: class numbers must be {wanted}")
    return np.array([label for _, label in numbers], np.int64)
