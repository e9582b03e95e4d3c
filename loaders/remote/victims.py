"""Finds samples of a local copy that can be dropped because they are needed last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
# (samples, whether the batch that is being announced is past) -> the place in the stream at which each is needed next.
NextUse = Callable[[Index, bool], Index]

_CANDIDATES = 4096  # samples that are looked at in one draw
_USES = 64  # of a draw: the order of so many samples takes milliseconds to compute
_MAX_SHARE = 32  # one in so many candidates is dropped, so that of few only the best are


class Victims:
    """Choose what to drop: of random candidates those that are needed last; random ones if the future is not known.

    Args:
        num_samples: of the data set.
        has: takes samples and returns which are there.

    Attributes:
        next_use: computes when samples are needed next; None if that is not known.
    """

    def __init__(self, num_samples: int, has: Callable[[Index], npt.NDArray[np.bool_]]) -> None:
        self._num_samples, self._has = num_samples, has
        self.next_use: NextUse | None = None
        self._random = np.random.default_rng()
        self._best: list[tuple[int, int]] = []  # (place at which it is needed, sample), that needed last at the end
        self._uses_left = 0

    def take(self, again: int) -> int | None:
        """Return a sample to drop for one that is needed at place `again`; None if none is needed later."""
        if not self._uses_left:
            self._draw()
        self._uses_left -= 1
        while self._best and self._best[-1][0] > again:
            sample = self._best.pop()[1]
            if self._has(np.array([sample]))[0]:
                return sample
        return None

    def _draw(self) -> None:
        drawn = self._random.permutation(np.unique(self._random.integers(0, self._num_samples, _CANDIDATES)))
        found = drawn[self._has(drawn)]
        when = np.full(len(found), np.iinfo(np.int64).max) if self.next_use is None else self.next_use(found, False)
        count = min(_USES, -(-len(found) // _MAX_SHARE))
        last = np.argsort(when, kind="stable")[len(found) - count :]
        self._best = list(zip(when[last].tolist(), found[last].tolist(), strict=True))
        self._uses_left = max(1, count)
