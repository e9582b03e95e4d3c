"""What a backend is to a loader: batches in order, a seek and a close."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.errors import LoaderError


class Cursor(NamedTuple):
    """A place in the stream: `position` counts the samples of `epoch` that all ranks together were served."""

    epoch: int
    position: int


class BadSample(NamedTuple):
    """A sample that could not be served, and what stands in its row: a substitute's index, or -1 for padding."""

    sample: int
    code: str
    cause: str
    path: bytes
    substitute: int
    row: int

    def error(self, **where: int | str) -> LoaderError:
        """As the exception that policy "raise" throws."""
        return LoaderError(self.code, self.cause, sample=self.sample, path=self.path, **where)  # type: ignore[arg-type]


@dataclass(frozen=True)
class HostBatch:
    """One rank's batch before the batch stage, in host memory, but for images that a backend made on the device.

    images: uint8 [batch, height, width, 3]; index, labels: int64 [batch], -1 in padding rows; windows: int32 [batch, 4]
    (x, y, width, height in the source image); flips: bool [batch]; produce_s: seconds of one worker's time; read_s:
    those of them inside the source; resident: the images lie on the loader's device, in memory that the backend uses
    again once the last tensor over it is gone.
    """

    cursor: Cursor
    images: torch.Tensor
    index: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    bad: tuple[BadSample, ...]
    produce_s: float
    resident: bool = False
    read_s: float = 0.0


class Engine(Protocol):
    """A backend. It produces the batches of its schedule in order, epoch after epoch, ahead of the consumer.

    Epochs, state, policy, statistics and transfers live in Loader; an engine knows none of them.
    """

    name: str
    consumer_bytes: int  # what the consumer takes for batches of its own: counted with the engine's before it starts

    def seek(self, cursor: Cursor) -> None:
        """Make `cursor` the next batch; costs nothing if it is already. Starts what has to be started."""
        ...

    def next(self) -> HostBatch:
        """The next batch; waits for it. Raises LoaderError E-WORKER, E-OOM, E-TIMEOUT."""
        ...

    def ready(self) -> int:
        """How many batches are finished and not yet taken."""
        ...

    def describe(self) -> dict[str, object]:
        """Settings in force (workers, prefetch, decoder, ...), JSON-serialisable, for records and reports."""
        ...

    def close(self) -> None:
        """Stop and free everything, within seconds, whatever state the workers are in; idempotent."""
        ...


@dataclass
class EpochLedger:
    """What became of the samples planned for this rank: planned = delivered + replaced, each replaced one listed."""

    epoch: int
    planned: int = 0
    delivered: int = 0
    replaced: int = 0
    bad: list[BadSample] = field(default_factory=list)

    def add(self, batch: HostBatch) -> None:
        """Book a delivered batch; padding that stands for no sample is not counted."""
        padded = {bad.row for bad in batch.bad if bad.substitute < 0}
        rows = int((batch.index >= 0).sum()) + len(padded)
        self.planned += rows
        self.replaced += len(batch.bad)
        self.delivered += rows - len(batch.bad)
        self.bad.extend(batch.bad)

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable; paths escaped to ASCII."""
        lines = [
            {
                "sample": b.sample,
                "code": b.code,
                "cause": b.cause,
                "path": ascii(b.path)[2:-1],
                "substitute": b.substitute,
            }
            for b in self.bad
        ]
        counts = {"planned": self.planned, "delivered": self.delivered, "replaced": self.replaced}
        return {"epoch": self.epoch, **counts, "bad": lines}


@dataclass(frozen=True)
class LoaderStats:
    """Where time went since the loader was made.

    wait_s: seconds the consumer stood waiting in next(); produce_s: seconds of worker time spent on the delivered
    batches; read_s: those of them inside the source, reading; elapsed_s: from the first next() to the latest;
    queue_depth: finished batches found waiting, mean over all next() calls.
    """

    batches: int = 0
    images: int = 0
    wait_s: float = 0.0
    produce_s: float = 0.0
    read_s: float = 0.0
    elapsed_s: float = 0.0
    queue_depth: float = 0.0

    def with_batch(
        self, images: int, *, wait_s: float, elapsed_s: float, ready: int, produce_s: float = 0.0, read_s: float = 0.0
    ) -> LoaderStats:
        """Return these statistics with one more batch counted, before which `ready` batches were found waiting."""
        return LoaderStats(
            batches=self.batches + 1,
            images=self.images + images,
            wait_s=self.wait_s + wait_s,
            produce_s=self.produce_s + produce_s,
            read_s=self.read_s + read_s,
            elapsed_s=elapsed_s,
            queue_depth=(self.queue_depth * self.batches + ready) / (self.batches + 1),
        )

    @property
    def images_per_s(self) -> float:
        """Return delivered images over elapsed seconds; 0 before the second batch."""
        return self.images / self.elapsed_s if self.elapsed_s else 0.0
