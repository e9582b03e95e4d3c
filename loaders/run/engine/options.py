"""WorkerOptions: the checked options that all engines share."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loaders.run.workers.worker_progress import DEFAULT_WATCHDOG_S, check_watchdog
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.messages.checked import checked_int, set_checked


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of an engine's workers, which do not change the stream.

    Attributes:
        workers: number of workers, 0 to work in the consumer; None for one per processor, divided among the ranks on
            this machine.
        prefetch: batches that are made ahead, per worker process, or by all threads together, which share batches.
        watchdog_s: seconds without any progress before waiting for a batch is given up.
    """

    workers: int | None = None
    prefetch: int = 3
    watchdog_s: float = DEFAULT_WATCHDOG_S

    def __post_init__(self) -> None:
        set_checked(
            self,
            workers=None if self.workers is None else checked_int("workers", self.workers, 0),
            prefetch=checked_int("prefetch", self.prefetch, 1),
        )
        check_watchdog(self.watchdog_s)

    @property
    def num_workers(self) -> int:
        """Number of workers, 0 to work in the consumer."""
        return default_workers() if self.workers is None else self.workers
