"""WorkerCopies: a user's function, of which each worker calls its own copy if calls change it."""

from __future__ import annotations

import contextlib
import copy
import enum
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.loaders.make.own.own_state import State, read_state

Result = TypeVar("Result")


class Sharing(enum.Enum):
    """How threads share a function: all call the same one, each its own copy, or the same one, one at a time."""

    SHARED = "shared"
    COPIED = "copied"
    ALONE = "alone"


class _OneAtATime:
    def __init__(self) -> None:
        self.lock = threading.RLock()


_turn = _OneAtATime()
os.register_at_fork(after_in_child=_turn.__init__)  # type: ignore[misc]  # a thread of the parent may hold the lock


class WorkerCopies:
    """A user's function for the calls of all workers. It can be pickled if the function can.

    A function may keep parameters of a call in attributes, or write into a buffer. If several threads called it, they
    would change each other's results. So each thread other than the first calls its own copy; a function that cannot
    be copied is called by one thread at a time. In another process, the tensors of a function that calls change are
    copied too: torch would place them in memory that all processes share.
    """

    def __init__(self, function: Any, sharing: Sharing) -> None:
        self.function, self.sharing = function, sharing
        self._of_thread = threading.local()
        self._of_thread.function = function

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.function, self.sharing)

    def use(self, call: Callable[[Any], Result]) -> Result:
        """Return the result of `call` for this thread's function. With ALONE it must not be part of the function."""
        if self.sharing is Sharing.SHARED:
            return call(self.function)
        if not hasattr(self._of_thread, "function"):
            with _turn.lock:
                is_alone = self.sharing is Sharing.ALONE
                self._of_thread.function = self.function if is_alone else copy_function(self.function)
        function = self._of_thread.function
        if function is not self.function:
            return call(function)
        with _turn.lock:
            return call(function)


def always_copied(function: Any) -> WorkerCopies:
    """Return a function whose calls change it; it is ALONE if it cannot be copied."""
    return WorkerCopies(function, Sharing.ALONE if copy_function(function) is function else Sharing.COPIED)


def copied_if_changed(function: Any, call: Callable[[Any, int], object], *, may_copy: bool = True) -> WorkerCopies:
    """Return a function for several workers: COPIED or ALONE if calls change it.

    call: calls a function with values that differ for each number, and from those of earlier calls, also in their mean
        and their order.
    """
    state, changed = _call(function, call, 0, read_state(function))
    if not changed and not state.sets_attributes:
        return WorkerCopies(function, Sharing.SHARED)
    copied = copy_function(function) if may_copy else function
    is_apart = copied is not function and not _call(copied, call, 1, state, of=function)[1]
    return WorkerCopies(function, Sharing.COPIED if is_apart else Sharing.ALONE)


def _call(
    function: Any, call: Callable[[Any, int], object], number: int, before: State, of: Any = None
) -> tuple[State, bool]:
    """Call a function; return its state, or that of `of`, and whether it has changed."""
    with contextlib.suppress(Exception):  # errors are reported for the samples that cause them
        call(function, number)
    state = read_state(function if of is None else of)
    return state, state.digest != before.digest


def copy_function(function: Any) -> Any:
    """Return a copy, which shares large arrays with the function; the function itself if it cannot be copied."""
    try:
        return copy.deepcopy(function, {id(each): each for each in read_state(function).large})
    except Exception:  # it contains a lock, an open file or a module
        return function


def _restore(function: Any, sharing: Sharing) -> WorkerCopies:
    """Return a function that another process has sent, with its own tensors if calls change it."""
    is_shared = sharing is not Sharing.SHARED and read_state(function).has_tensors
    return WorkerCopies(copy_function(function) if is_shared else function, sharing)
