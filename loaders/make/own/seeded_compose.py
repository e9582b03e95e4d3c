"""SeededCompose: a transform of albumentations whose draws depend on a seed for each call, in any number of threads."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

_one_at_a_time = threading.Lock()  # for transforms that several threads call, because they have one random state


class SeededCompose:
    """Call an albumentations transform with a seed. It can be pickled if the transform can.

    Such a transform has a single random state, so each thread other than the first calls its own copy. A transform that
    cannot be copied is called by one thread at a time.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self._of_thread = threading.local()
        self._of_thread.function = function

    def __reduce__(self) -> tuple[object, ...]:
        return SeededCompose, (self.function,)

    def __call__(self, seed: int, **given: Any) -> Mapping[str, Any]:
        """Return the transform's results for the named arguments, drawn from `seed`."""
        if not hasattr(self._of_thread, "function"):
            with _one_at_a_time:
                self._of_thread.function = _copy(self.function)
        function = self._of_thread.function
        if function is not self.function:
            return _seeded(function, seed, given)
        with _one_at_a_time:
            return _seeded(function, seed, given)

    @property
    def is_copied(self) -> bool:
        """Whether each thread has its own transform."""
        return _copy(self.function) is not self.function


def _seeded(function: Any, seed: int, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if hasattr(function, "_get_effective_seed"):  # it mixes torch's worker number into a seed
        function.set_random_state(np.random.default_rng(seed), random.Random(seed))  # noqa: S311
    elif hasattr(function, "set_random_seed"):  # older versions draw from the global random state
        function.set_random_seed(seed)
    found: Mapping[str, Any] = function(**given)
    return found


def _copy(function: Any) -> Any:
    try:
        return copy.deepcopy(function)
    except Exception:  # it contains a lock, an open file or a module
        return function
