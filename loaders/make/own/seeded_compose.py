"""SeededCompose: a transform of albumentations whose draws depend on a seed for each call, in any number of threads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from penstock.loaders.make.own.worker_copies import Sharing, always_copied


class SeededCompose:
    """Call an albumentations transform with a seed. It can be pickled if the transform can.

    Such a transform has a single random state, so each worker calls its own copy.
    """

    def __init__(self, function: Any) -> None:
        self._copies = always_copied(function)

    def __call__(self, seed: int, **given: Any) -> Mapping[str, Any]:
        """Return the transform's results for the named arguments, drawn from `seed`."""
        return self._copies.use(partial(_seeded, seed=seed, given=given))

    @property
    def is_copied(self) -> bool:
        """Whether each thread has its own transform."""
        return self._copies.sharing is Sharing.COPIED


def _seeded(function: Any, seed: int, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if hasattr(function, "_get_effective_seed"):  # it mixes torch's worker number into a seed
        function.set_random_state(np.random.default_rng(seed), random.Random(seed))  # noqa: S311
    elif hasattr(function, "set_random_seed"):  # older versions draw from the global random state
        function.set_random_seed(seed)
    found: Mapping[str, Any] = function(**given)
    return found
