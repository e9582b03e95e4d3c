"""Progress is a shared table of what each worker is doing."""

from __future__ import annotations

import numpy as np

from penstock.loaders.system.shared_memory import SharedArray

# One row a worker, and a last one for the parent: sample in work or the latest, nanoseconds when begun, batches made,
# process id, 1 while it makes a batch.
SAMPLE, SINCE_NS, MADE, PID, BUSY = range(5)


class WorkerTraceback(Exception):
    """The text of a traceback in a worker process: what an error that is raised here was caused by."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"\n{trace}")


class Progress:
    """Shared table of what each worker is doing, readable whatever state the worker is in."""

    def __init__(self, workers: int, *, shared: bool) -> None:
        self._shared = SharedArray.create((workers + 1, 5), np.int64, name="penstock-progress") if shared else None
        self.table = self._shared.array if self._shared else np.zeros((workers + 1, 5), np.int64)
        self.table[:, SAMPLE] = -1

    @property
    def generation(self) -> int:
        """The generation of work that is still wanted."""
        return int(self.table[-1, MADE])

    def next_generation(self) -> int:
        """Declare all work that was handed out so far unwanted."""
        self.table[-1, MADE] += 1
        return self.generation

    def __getstate__(self) -> SharedArray:
        assert self._shared is not None
        return self._shared

    def __setstate__(self, shared: SharedArray) -> None:
        self._shared, self.table = shared, shared.array

    def close(self) -> None:
        """Let go of the shared memory."""
        if self._shared:
            self._shared.close()
