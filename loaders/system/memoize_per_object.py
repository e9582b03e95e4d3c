"""Keeps what was computed for an object for as long as the object lives, and no longer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Owner = TypeVar("Owner")
Given = ParamSpec("Given")
Result = TypeVar("Result")
_NOTHING = object()
Function = Callable[Concatenate[Owner, Given], Result]


def keep_results(most: int) -> Callable[[Function[Owner, Given, Result]], Function[Owner, Given, Result]]:
    """Make a function keep its latest results, at most `most` for each first argument, which must be hashable.

    Unlike functools.lru_cache it does not keep the first argument alive: an order of a loader that is gone would keep
    its shared memory and its descriptors. A result must not refer to it either.
    """

    def decorate(function: Function[Owner, Given, Result]) -> Function[Owner, Given, Result]:
        kept: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

        @functools.wraps(function)
        def keeping(owner: Owner, /, *arguments: Given.args, **named: Given.kwargs) -> Result:
            key = (arguments, *named.items())
            own = kept.get(owner)
            if own is None:
                own = kept.setdefault(owner, {})
            found = own.get(key, _NOTHING)
            if found is _NOTHING:
                found = function(owner, *arguments, **named)
                if len(own) >= most:
                    own.clear()  # of a run that goes on from here, the next ones are asked for
                own[key] = found
            return found  # type: ignore[no-any-return]

        return keeping

    return decorate
