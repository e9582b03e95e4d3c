"""Watchdog measures how long the workers that are waited for have made no progress."""

from __future__ import annotations

import math
import time

from penstock.pipelines.messages.checked import checked_number

POLL_S = 0.5  # between two looks at workers that are waited for
DEFAULT_WATCHDOG_S = 300.0


def check_watchdog(limit_s: float) -> None:
    """Raise ValueError for a limit that is no number of seconds above 0; infinity is one, and means no limit."""
    if limit_s != math.inf:
        checked_number("watchdog_s", limit_s, above=0)


class Watchdog:
    """Add up the time in which a worker's progress has not changed, over looks that follow each other.

    Each look adds at most two polls: after Ctrl-Z and `fg` the clock has moved on, but the workers were stopped with
    the program.

    Attributes:
        limit_s: seconds without progress after which a worker is given up.
        silent_s: seconds without progress so far.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.silent_s = 0.0
        self._progress: bytes | None = None
        self._looked_s = time.monotonic()

    def restart(self) -> None:
        """Forget what was seen, because something was heard from the workers."""
        self.silent_s, self._progress, self._looked_s = 0.0, None, time.monotonic()

    def has_expired(self, progress: bytes) -> bool:
        """Look at `progress`, any bytes that change with it, and say whether it has stood still for too long."""
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self.silent_s = progress, 0.0
        else:
            self.silent_s += min(now - self._looked_s, 2 * POLL_S)
        self._looked_s = now
        return self.silent_s >= self.limit_s
