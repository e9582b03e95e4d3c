"""The time budget of a benchmark run."""

from __future__ import annotations

import math

from penstock.bench.record.clock import Stopwatch, process_age

CLOSING_S = 2.0  # reserved for closing loaders, judging and printing


class TimeBudget:
    """Counts the remaining seconds of a run; without a limit they are infinite.

    seconds: the limit, or None; used: seconds that had passed before.
    """

    def __init__(self, seconds: float | None = None, used: float = 0.0) -> None:
        self.seconds = seconds
        self._used, self._watch = used, Stopwatch()

    @classmethod
    def of_this_process(cls, seconds: float | None) -> TimeBudget:
        """Return a budget that counts from the start of the process, because a user also waits for imports."""
        return cls(seconds, process_age())

    @property
    def used(self) -> float:
        """Return the seconds that have passed."""
        return self._used + self._watch.seconds

    @property
    def left(self) -> float:
        """Return the seconds left for measurements, negative when exceeded; infinity without a limit."""
        return math.inf if self.seconds is None else self.seconds - CLOSING_S - self.used

    def share(self, part: float) -> float:
        """Return a share of the limit in seconds; 0 without a limit."""
        return 0.0 if self.seconds is None else part * self.seconds

    def too_short(self) -> ValueError:
        """Return the error to raise if the loader itself could not be measured in time."""
        return ValueError(
            f"the budget of {self.seconds:g} s was over before the loader could be measured: pass a longer --budget"
        )
