"""The contract between a loader and its backend (Engine), and the types that pass between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.errors import ERROR_CODES, LoaderError

MAX_REPAIRS = 1000  # entries of a ledger: a data set may be repaired throughout


class Cursor(NamedTuple):
    """Name a place in the stream.

    Attributes:
        epoch: number of the epoch, from 0.
        position: samples of the epoch that all ranks together have been served.
    """

    epoch: int
    position: int


NOWHERE = Cursor(-1, 0)  # where an engine is while Ctrl-C could lose a batch: to go on from there, it is told the place


class BadSample(NamedTuple):
    """Describe a sample that could not be served.

    Attributes:
        sample: index in the source.
        code: error code, such as "E-TRUNC".
        cause: what is wrong, in one line.
        path: file or name of the sample.
        substitute: index of the sample that stands in its row, -1 for padding.
        row: its row in the batch.
        fix: what the user can do, one line; empty for what is usual with the code, and after a resume.
    """

    sample: int
    code: str
    cause: str
    path: bytes
    substitute: int
    row: int
    fix: str = ""

    def error(self, **where: int | str) -> LoaderError:
        """Return the exception that the policy "raise" throws."""
        return LoaderError(self.code, self.cause, fix=self.fix, sample=self.sample, path=self.path, **where)  # type: ignore[arg-type]


@dataclass(frozen=True)
class HostBatch:
    """Hold one rank's batch before the batch stage.

    Attributes:
        cursor: its place in the stream.
        images: uint8 [batch, height, width, 3], in host memory unless `resident`.
        index: int64 [batch], positions in the source, -1 in padding rows.
        labels: int64 [batch], -1 in padding rows.
        windows: int32 [batch, 4], crops as (x, y, width, height) in the source image.
        flips: bool [batch], whether the image is mirrored.
        bad: the samples that could not be served.
        produce_s: seconds that one worker spent on the batch.
        resident: the images lie on the loader's device, in memory that the backend uses again once the last tensor
            over it is gone.
        read_s: seconds of produce_s that were spent inside the source.
        repaired: the samples that are served although libjpeg made up a part of them; each is its own substitute.
        pinned: the images lie in page-locked memory, which the backend uses again once the last tensor over it is gone.
        misread: samples of this batch or an earlier one that a decoder was found to have decoded wrongly; from here on
            another one decodes them.
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
    repaired: tuple[BadSample, ...] = ()
    pinned: bool = False
    misread: tuple[BadSample, ...] = ()


class Engine(Protocol):
    """Produce the batches of a schedule in order, epoch after epoch, ahead of the consumer: what a backend does.

    Epochs, state, policy, statistics and transfers live in Loader; an engine knows none of them.

    Attributes:
        name: name of the backend.
        consumer_bytes: memory that the consumer takes for batches of its own; create_loader sets it, and the engine
            adds it to its own needs before it starts.
    """

    name: str
    consumer_bytes: int

    def seek(self, cursor: Cursor) -> None:
        """Make `cursor` the next batch; costs nothing if it is already. Starts what has to be started."""
        ...

    def next(self) -> HostBatch:
        """Wait for the next batch and return it. Raises LoaderError, such as E-WORKER, E-OOM or E-TIMEOUT."""
        ...

    def ready(self) -> int:
        """Count the batches that are finished and not yet taken."""
        ...

    def describe(self) -> dict[str, object]:
        """Return the settings in force (workers, prefetch, ...), JSON-serialisable, for records and reports."""
        ...

    def close(self) -> None:
        """Stop and free everything, within seconds, whatever state the workers are in; idempotent."""
        ...


@dataclass
class EpochLedger:
    """Count what became of the samples of one epoch on this rank: planned = delivered + replaced.

    Attributes:
        epoch: number of the epoch.
        planned: samples that were to be served.
        delivered: samples that were served.
        replaced: samples that could not be served; a substitute or padding has their row.
        bad: one entry for each replaced sample.
        repaired: delivered samples whose pixels are not the file's: libjpeg made up a part, such as the rows that a cut
            photo lacks, or a GPU's decoder was found wrong (E-DECODER).
        repairs: one entry for each of the first MAX_REPAIRS of them.
    """

    epoch: int
    planned: int = 0
    delivered: int = 0
    replaced: int = 0
    bad: list[BadSample] = field(default_factory=list)
    repaired: int = 0
    repairs: list[BadSample] = field(default_factory=list)

    def add(self, batch: HostBatch) -> None:
        """Count a delivered batch; padding that stands for no sample is left out."""
        padded = {bad.row for bad in batch.bad if bad.substitute < 0}
        rows = int((batch.index >= 0).sum()) + len(padded)
        self.planned += rows
        self.replaced += len(batch.bad)
        self.delivered += rows - len(batch.bad)
        self.bad.extend(batch.bad)
        flawed = (*batch.repaired, *batch.misread)
        self.repaired += len(flawed)
        self.repairs.extend(flawed[: max(0, MAX_REPAIRS - len(self.repairs))])

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> EpochLedger:
        """Return the ledger that `as_dict` has written. Raises ValueError for anything else."""
        epoch = saved.get("epoch")
        if type(epoch) is not int:
            raise ValueError("this is no ledger")
        ledger = cls(epoch)
        ledger.add_saved(saved)
        return ledger

    def add_saved(self, saved: Mapping[str, Any]) -> None:
        """Count what a ledger counted that `as_dict` returned. Raises ValueError for anything else."""
        try:
            counts = [saved["planned"], saved["delivered"], saved["replaced"], saved["repaired"]]
            bad, repairs = ([_entry(line) for line in saved[name]] for name in ("bad", "repairs"))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"this is no ledger ({type(error).__name__}: {error})") from None
        if any(type(count) is not int or count < 0 for count in counts) or counts[0] != counts[1] + counts[2]:
            raise ValueError("the ledger's counts do not add up")
        if len(bad) != counts[2] or len(repairs) > counts[3]:
            raise ValueError("the ledger's lines are not those of its counts")
        self.planned += counts[0]
        self.delivered += counts[1]
        self.replaced += counts[2]
        self.repaired += counts[3]
        self.bad.extend(bad)
        self.repairs.extend(repairs[: max(0, MAX_REPAIRS - len(self.repairs))])

    def line(self) -> str:
        """Return the counts in one line, with how many samples each code replaced."""
        codes = Counter(entry.code for entry in self.bad)
        why = f" ({', '.join(f'{code} {count}' for code, count in codes.most_common())})" if codes else ""
        repaired = f" repaired={self.repaired}" if self.repaired else ""
        return f"planned={self.planned} delivered={self.delivered} replaced={self.replaced}{why}{repaired}"

    def as_dict(self) -> dict[str, object]:
        """Return the ledger as a JSON-serialisable dict, its paths escaped to ASCII."""
        counts = {"planned": self.planned, "delivered": self.delivered, "replaced": self.replaced}
        bad, repairs = ([_line(entry) for entry in entries] for entries in (self.bad, self.repairs))
        return {"epoch": self.epoch, **counts, "bad": bad, "repaired": self.repaired, "repairs": repairs}


SHORTEST_WAIT_S = 1e-6  # waits are counted in classes, each 1.15 times as long as the one before
WAIT_CLASSES_A_DECADE, WAIT_CLASSES = 16, 144  # up to 1,000 s


def wait_class(seconds: float) -> int:
    """Return the class that a wait is counted in: 0 up to SHORTEST_WAIT_S, WAIT_CLASSES for the longest."""
    if seconds <= SHORTEST_WAIT_S:
        return 0
    return min(WAIT_CLASSES, math.ceil(math.log10(seconds / SHORTEST_WAIT_S) * WAIT_CLASSES_A_DECADE))


def _line(entry: BadSample) -> dict[str, object]:
    path = ascii(entry.path)[2:-1]
    return {
        "sample": entry.sample,
        "code": entry.code,
        "cause": entry.cause,
        "path": path,
        "substitute": entry.substitute,
    }


def _entry(line: Mapping[str, Any]) -> BadSample:
    """Return the entry of which `_line` made a line. Raises what a line of another kind leads to."""
    path = line["path"].encode("ascii").decode("unicode_escape").encode("latin-1")
    entry = BadSample(line["sample"], line["code"], line["cause"], path, line["substitute"], -1)
    if (type(entry.sample), type(entry.substitute), type(entry.cause)) != (int, int, str):
        raise TypeError("a line of it has other types")
    if entry.code not in ERROR_CODES:
        raise ValueError(f"there is no code {entry.code!r}")
    return entry


@dataclass(frozen=True)
class LoaderStats:
    """Say where time went since the loader was made.

    Attributes:
        batches: batches delivered, or left out because they held no sample.
        images: images delivered.
        wait_s: seconds that the consumer waited for batches.
        produce_s: seconds of worker time spent on the delivered batches.
        read_s: seconds of produce_s spent inside the source, reading.
        elapsed_s: seconds from the first request for a batch to the latest delivery.
        queue_depth: finished batches found waiting, mean over all requests.
        repaired: images of which libjpeg made up a part, or that a GPU decoded wrongly; the ledger names them.
        replaced: samples that could not be served; the ledger names them.
        waits: class of length -> how many waits for a batch fell into it; wait_quantile reads it.
    """

    batches: int = 0
    images: int = 0
    wait_s: float = 0.0
    produce_s: float = 0.0
    read_s: float = 0.0
    elapsed_s: float = 0.0
    queue_depth: float = 0.0
    repaired: int = 0
    replaced: int = 0
    waits: Mapping[int, int] = field(default_factory=dict, repr=False)

    def wait_quantile(self, share: float) -> float:
        """Return the seconds that `share` of the waits for a batch (0 to 1) did not exceed; 0 before any.

        It is right to within 8 %. stats().wait_quantile(0.99) is the p99 of the wait.
        """
        wanted, seen = share * sum(self.waits.values()), 0
        for number, count in sorted(self.waits.items()):
            seen += count
            if seen >= wanted:
                return SHORTEST_WAIT_S * 10 ** ((number - 0.5) / WAIT_CLASSES_A_DECADE) if number else 0.0
        return 0.0

    def with_batch(
        self,
        images: int,
        *,
        wait_s: float,
        elapsed_s: float,
        ready: int,
        produce_s: float = 0.0,
        read_s: float = 0.0,
        repaired: int = 0,
        replaced: int = 0,
    ) -> LoaderStats:
        """Return these statistics with one more batch counted, before which `ready` batches were found waiting."""
        place = wait_class(wait_s)
        return LoaderStats(
            batches=self.batches + 1,
            images=self.images + images,
            wait_s=self.wait_s + wait_s,
            produce_s=self.produce_s + produce_s,
            read_s=self.read_s + read_s,
            elapsed_s=elapsed_s,
            queue_depth=(self.queue_depth * self.batches + ready) / (self.batches + 1),
            repaired=self.repaired + repaired,
            replaced=self.replaced + replaced,
            waits={**self.waits, place: self.waits.get(place, 0) + 1},
        )

    @property
    def images_per_s(self) -> float:
        """Return delivered images over elapsed seconds; 0 before the first batch."""
        return self.images / self.elapsed_s if self.elapsed_s else 0.0
