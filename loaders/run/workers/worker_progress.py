"""The work of each worker in a table for all processes, and the time since its last progress."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.sources.data import find_whole
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.messages.checked import checked_number
from penstock.pipelines.native.rows import Progress

# Columns of the table: the current or latest sample, the time at which it was begun (monotonic, nanoseconds), number of
# finished work items (made, refused or stale), process id, 1 while the worker makes a batch.
SAMPLE, SINCE_NS, MADE, PID, BUSY = range(5)
POLL_S = 0.5  # between two checks of awaited workers
DEFAULT_WATCHDOG_S = 300.0
_MORE_S = 60.0  # than retry_s: the last attempts, and requests that began later


def check_watchdog(limit_s: float) -> None:
    """Raise ValueError unless the limit is a number of seconds above 0; infinity means no limit."""
    if limit_s != math.inf:
        checked_number("watchdog_s", limit_s, above=0)


def outlast_retries(limit_s: float, source: Any) -> float:
    """Return the limit, or a longer one for data at URLs: a dead storage is then reported with its own error."""
    options = (getattr(whole, "options", None) for whole in find_whole(source))
    return max(limit_s, *(each.retry_s + _MORE_S for each in options if isinstance(each, Access)), 0.0)


class WorkerTraceback(Exception):
    """The text of a traceback in a worker process, as the cause of an error in this process."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"\n{trace}")


class WorkerProgress:
    """A table of each worker's current work, readable in any state of the worker.

    Attributes:
        table: int64 [workers + 1, 5], one row per worker; MADE in the last row is the generation.
    """

    def __init__(self, workers: int, *, shared: bool) -> None:
        self._shared = SharedArray.create((workers + 1, 5), np.int64, name="penstock-progress") if shared else None
        self.table = self._shared.array if self._shared else np.zeros((workers + 1, 5), np.int64)
        self.table[:, SAMPLE] = -1

    @property
    def generation(self) -> int:
        """Return the current generation of work; work from earlier generations is stale."""
        return int(self.table[-1, MADE])

    def next_generation(self) -> None:
        """Make all work that was assigned so far stale."""
        self.table[-1, MADE] += 1

    def addresses(self, worker: int, generation: int) -> Progress:
        """Return the addresses at which the native library records the progress of `worker` for `generation`."""
        first, width = self.table.ctypes.data, self.table.strides[0]
        mine, last = first + worker * width, first + (len(self.table) - 1) * width
        size = self.table.itemsize
        return Progress(mine + SAMPLE * size, mine + SINCE_NS * size, last + MADE * size, generation)

    def __getstate__(self) -> SharedArray:
        assert self._shared is not None
        return self._shared

    def __setstate__(self, shared: SharedArray) -> None:
        self._shared, self.table = shared, shared.array

    def close(self) -> None:
        """Release the shared memory."""
        if self._shared:
            self._shared.close()


class Watchdog:
    """The time in which a worker's progress has not changed, summed over consecutive checks.

    Each check adds at most two polling intervals: after Ctrl-Z and `fg` the clock has advanced, but the workers were
    stopped with the program.

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
        """Start again from 0, because the workers have sent something."""
        self.silent_s, self._progress, self._looked_s = 0.0, None, time.monotonic()

    def has_expired(self, progress: bytes) -> bool:
        """Return whether `progress`, any bytes that change with progress, has not changed for too long."""
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self.silent_s = progress, 0.0
        else:
            self.silent_s += min(now - self._looked_s, 2 * POLL_S)
        self._looked_s = now
        return self.silent_s >= self.limit_s
