"""Inspects functions that users pass: their parameters, and where they failed."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from typing import Any

from penstock.pipelines.errors import shorten

_GENERATOR_NAMES = ("generator", "rng")


def takes_generator(function: Callable[..., Any], num_others: int) -> bool:
    """Return whether a function accepts a random generator: by name, or as an extra parameter without a default."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except Exception:  # written in C, or it raises when compared
        return False
    if any(parameter.name in _GENERATOR_NAMES for parameter in parameters):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is inspect.Parameter.empty for each in parameters) > num_others


def describe_exception(error: BaseException) -> str:
    """Return an exception's type, text and line in the user's code, which it may lack."""
    tried = traceback.walk_tb(error.__traceback__)
    places = [(each.f_code.co_filename, line) for each, line in tried if not _is_ours(each.f_globals.get("__name__"))]
    own = [place for place in places if f"{os.sep}site-packages{os.sep}" not in place[0]] or places
    where = f" ({os.path.basename(own[-1][0])}:{own[-1][1]})" if own else ""
    return f"{type(error).__name__}: {shorten(str(error))}{where}"


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.startswith("penstock.")
