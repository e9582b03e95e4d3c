"""WorkerProgress is a table of what each worker is doing, which all processes see."""

from __future__ import annotations

import numpy as np

from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.native.rows import Progress

# Columns of the table: the current or latest sample, the time at which it was begun (monotonic, nanoseconds), number of
# finished work items (made, refused or stale), process id, 1 while the worker makes a batch.
SAMPLE, SINCE_NS, MADE, PID, BUSY = range(5)


class WorkerTraceback(Exception):
    """Carry the text of a traceback in a worker process, as the cause of an error that is raised in this one."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"\n{trace}")


class WorkerProgress:
    """Table of what each worker is doing, readable whatever state the worker is in.

    Attributes:
        table: int64 [workers + 1, 5], one row a worker; MADE in the last row is the generation.
    """

    def __init__(self, workers: int, *, shared: bool) -> None:
        self._shared = SharedArray.create((workers + 1, 5), np.int64, name="penstock-progress") if shared else None
        self.table = self._shared.array if self._shared else np.zeros((workers + 1, 5), np.int64)
        self.table[:, SAMPLE] = -1

    @property
    def generation(self) -> int:
        """Return the generation of work that is still wanted; what was handed out in an earlier one is stale."""
        return int(self.table[-1, MADE])

    def next_generation(self) -> None:
        """Make all work that was handed out so far stale."""
        self.table[-1, MADE] += 1

    def addresses(self, worker: int, generation: int) -> Progress:
        """Return where the native library notes what `worker` works on for `generation`."""
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
