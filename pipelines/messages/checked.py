"""Checks of arguments: each function returns the value as a plain Python type, or raises ValueError with its name."""

from __future__ import annotations

import difflib
import operator
import os
import reprlib
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import numpy as np

Part = TypeVar("Part")


def checked_bool(name: str, value: Any) -> bool:
    """Return `value`, a bool of Python or numpy. Rejects 0 and 1, and strings: "no" would be true."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {shown(value)}")


def checked_int(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return `value`, an integer (Python's or numpy's) from `low` to `high`. Rejects bools and floats."""
    number = None
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = operator.index(value)
    if number is None:
        raise ValueError(f"{name} must be an integer, got {shown(value)}")
    _check_range(name, number, low, high)
    return number


def checked_number(
    name: str, value: Any, low: float | None = None, high: float | None = None, *, above: float | None = None
) -> int | float:
    """Return `value` as a finite number from `low` to `high`, or above `above`; an integer stays an integer."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {shown(value)}")
    number = operator.index(value) if hasattr(value, "__index__") else float(value)
    if not abs(number) <= sys.float_info.max:  # an integer may be larger than any float
        raise ValueError(f"{name} must be finite, got {shown(value)}")
    _check_range(name, number, low, high, above)
    return number


def checked_tuple(name: str, value: Any, parts: Sequence[str], check: Callable[[str, Any], Part]) -> tuple[Part, ...]:
    """Return a tuple, list or array with one value per name in `parts` as a tuple of values checked by `check`."""
    values = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(values, (tuple, list)) or len(values) != len(parts):
        raise ValueError(f"{name} must be ({', '.join(parts)}), got {shown(value)}")
    return tuple(check(f"{name} ({part})", each) for part, each in zip(parts, values, strict=True))


def checked_interval(name: str, value: Any, highest: float | None = None) -> tuple[int | float, ...]:
    """Return `value` as (low, high): finite numbers above 0, up to `highest`, low at most high."""
    low, high = checked_tuple(name, value, ("low", "high"), partial(checked_number, high=highest, above=0))
    if low > high:
        raise ValueError(f"{name} must be (low, high) with low at most high, got {shown(value)}")
    return low, high


def checked_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value`, which must be one of `choices`."""
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}{near_name(value, choices)}")


def checked_path(name: str, value: Any) -> str | bytes | os.PathLike[Any]:
    """Return `value`, the path of a file or folder. Raises ValueError for anything else, such as None."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise ValueError(f"{name} must be a path, got {shown(value)}")
    return value


def set_checked(settings: object, **values: object) -> None:
    """Set fields of a frozen dataclass to checked `values`, from its __post_init__."""
    for name, value in values.items():
        object.__setattr__(settings, name, value)


def shown(value: object) -> str:
    """Return the value's repr for a message, shortened in the middle if it is long."""
    return reprlib.repr(value)


def near_name(name: object, known: Collection[str]) -> str:
    """Return "; perhaps 'center'" for a value similar to one of `known`, otherwise ""."""
    near = difflib.get_close_matches(name.lower(), known, 1) if isinstance(name, str) else []
    return f"; perhaps {near[0]!r}" if near else ""


def _check_range(name: str, number: float, low: float | None, high: float | None, above: float | None = None) -> None:
    is_low = (low is not None and number < low) or (above is not None and number <= above)
    if is_low or (high is not None and number > high):
        limits = {"at least": low, "above": above, "at most": high}
        wanted = " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)
        if low is not None and high is not None:
            wanted = f"from {low} to {high}"
        raise ValueError(f"{name} must be {wanted}, got {number}")
