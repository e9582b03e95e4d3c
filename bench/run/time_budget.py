"""The time that a benchmark run may take, and what is left of it."""

from __future__ import annotations

import math

from penstock.bench.record.clock import Stopwatch, process_age

CLOSING_S = 2.0  # kept for closing loaders, judging and printing


class TimeBudget:
    """Counts what a run has left of its seconds; without a limit that is always enough.

    seconds: the limit, None for none; used: seconds that were over before.
    """

    def __init__(self, seconds: float | None = None, used: float = 0.0) -> None:
        self.seconds = seconds
        self._used, self._watch = used, Stopwatch()

    @classmethod
    def of_this_process(cls, seconds: float | None) -> TimeBudget:
        """Return a budget that counts from the start of the process: a user waits for its imports, too."""
        return cls(seconds, process_age())

    @property
    def used(self) -> float:
        """Return the seconds that are over."""
        return self._used + self._watch.seconds

    @property
    def left(self) -> float:
        """Return the seconds left for measurements, below 0 when they are over; infinity without a limit."""
        return math.inf if self.seconds is None else self.seconds - CLOSING_S - self.used

    def share(self, part: float) -> float:
        """Return `part` of the whole in seconds; 0 without a limit."""
        return 0.0 if self.seconds is None else part * self.seconds

    def too_short(self) -> ValueError:
        """Return the error to raise if the loader itself could not be measured in time."""
        return ValueError(
            f"the budget of {self.seconds:g} s was over before the loader could be measured: pass a longer --budget"
        )
