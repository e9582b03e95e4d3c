"""WorkerOptions holds the options that all engines share, and checks them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.loaders.run.workers.worker_progress import DEFAULT_WATCHDOG_S, check_watchdog
from penstock.loaders.system.machine import default_workers
from penstock.pipelines.messages.checked import checked_int, set_checked


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Say how the workers of an engine run; none of it changes the stream.

    Attributes:
        workers: number of workers, 0 to work in the consumer; None for one per processor, which the ranks on this
            machine share.
        prefetch: batches made ahead for each worker process; of threads, which share batches, by all together.
        watchdog_s: seconds without any progress before a batch that is waited for is given up.
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
