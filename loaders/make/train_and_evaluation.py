"""Comparison of the training and evaluation loaders that exist together in a process."""

from __future__ import annotations

import weakref
from typing import Any, Generic, Protocol, TypeVar


class Compared(Protocol):
    """What is compared of a loader."""

    @property
    def trains(self) -> bool:
        """Whether the loader serves shuffled samples; otherwise it evaluates."""
        ...

    def is_related(self, training: Any) -> bool:
        """Return whether this evaluation may belong to a training."""
        ...

    def differences(self, training: Any) -> object:
        """Return how this evaluation differs from a training; a false value if they agree."""
        ...


T = TypeVar("T", bound=Compared)


class TrainAndEvaluation(Generic[T]):
    """The existing loaders of a process, and whether an evaluation that no training agrees with has been found."""

    def __init__(self) -> None:
        self._open: weakref.WeakKeyDictionary[object, T] = weakref.WeakKeyDictionary()
        self.has_found = False

    def add(self, loader: object, new: T) -> tuple[T, T] | None:
        """Add a loader; return the first evaluation that disagrees with all its trainings, and the last of these.

        Returns a pair once per process, otherwise None.
        """
        self._open[loader] = new
        every = list(self._open.values())
        for evaluation in [new] if not new.trains else [one for one in every if not one.trains]:
            trainings = [one for one in every if one.trains and evaluation.is_related(one)]
            if not self.has_found and trainings and all(map(evaluation.differences, trainings)):
                self.has_found = True  # before the warning, which may be an error
                return evaluation, trainings[-1]
        return None
