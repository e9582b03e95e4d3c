"""EpochLedger: counts of an epoch's samples, and lists of those that were replaced or repaired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import ERROR_CODES, LoaderError

MAX_REPAIRS = 1000  # most entries of a ledger, because all images of a data set may be repaired

CountSources = Callable[[npt.NDArray[np.int64]], dict[str, int]]


class BadSample(NamedTuple):
    """A sample that could not be served.

    Attributes:
        sample: index in the source.
        code: error code, such as "E-TRUNC".
        cause: what is wrong, in one line.
        path: file or name of the sample; empty if its source does not know it.
        substitute: index of the sample in its row instead, -1 for padding.
        row: its row in the batch.
        fix: what the user can do, in one line; empty for the code's usual fix, and after a resume.
        raised: the original exception, only with the policy "raise".
    """

    sample: int
    code: str
    cause: str
    path: bytes
    substitute: int
    row: int
    fix: str = ""
    raised: BaseException | None = None

    def error(self, **where: int | str) -> LoaderError:
        """Return the exception for the policy "raise"."""
        about: dict[str, Any] = {"fix": self.fix, "sample": self.sample, "path": self.path or None, **where}
        error = LoaderError(self.code, self.cause, **about)
        error.__cause__ = self.raised
        return error


@dataclass
class EpochLedger:
    """The counts of one epoch's samples on this rank: planned = delivered + replaced.

    Attributes:
        epoch: number of the epoch.
        planned: samples that were due to be served.
        delivered: samples that were served.
        replaced: samples that could not be served; their rows have a substitute or padding.
        bad: one entry for each replaced sample.
        repaired: delivered samples with other pixels than the file: libjpeg filled in missing data, as for a
            truncated photo, or a GPU decoder was found to be wrong (E-DECODER).
        repairs: one entry for each of the first MAX_REPAIRS repaired samples.
        sources: for a mixture, name of each source -> number of its samples that were served.
    """

    epoch: int
    planned: int = 0
    delivered: int = 0
    replaced: int = 0
    bad: list[BadSample] = field(default_factory=list)
    repaired: int = 0
    repairs: list[BadSample] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        index: npt.NDArray[np.int64],
        bad: Sequence[BadSample],
        flawed: Sequence[BadSample],
        count_sources: CountSources | None = None,
    ) -> None:
        """Count a delivered batch, without padding that does not replace a sample.

        index: int64 [batch], the sample of each row, -1 for padding; bad: samples that could not be served; flawed:
        repaired or misread samples that were served; count_sources: for a mixture, returns how many of some samples
        belong to each source, by name.
        """
        if count_sources is not None:
            self._add_sources(count_sources(index[index >= 0]))
        padded = {entry.row for entry in bad if entry.substitute < 0}
        rows = int((index >= 0).sum()) + len(padded)
        self.planned += rows
        self.replaced += len(bad)
        self.delivered += rows - len(bad)
        self.bad.extend(bad)
        self.repaired += len(flawed)
        self.repairs.extend(flawed[: max(0, MAX_REPAIRS - len(self.repairs))])

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> EpochLedger:
        """Return the ledger that `as_dict` has saved. Raises ValueError for anything else."""
        epoch = saved.get("epoch")
        if type(epoch) is not int:
            raise ValueError("not a valid ledger")
        ledger = cls(epoch)
        ledger.add_saved(saved)
        return ledger

    def add_saved(self, saved: Mapping[str, Any]) -> None:
        """Add the counts of a ledger that `as_dict` has saved. Raises ValueError for anything else."""
        try:
            counts = [saved["planned"], saved["delivered"], saved["replaced"], saved["repaired"]]
            bad, repairs = ([_from_line(line) for line in saved[name]] for name in ("bad", "repairs"))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a valid ledger ({type(error).__name__}: {error})") from None
        sources = saved.get("sources", {})
        if not isinstance(sources, dict) or any(type(count) is not int for count in sources.values()):
            raise ValueError("not a valid ledger (sources)")
        if any(type(count) is not int or count < 0 for count in counts) or counts[0] != counts[1] + counts[2]:
            raise ValueError("the ledger's counts do not add up")
        if len(bad) != counts[2] or len(repairs) > counts[3]:
            raise ValueError("the ledger's lines do not match its counts")
        self._add_sources(sources)
        self.planned += counts[0]
        self.delivered += counts[1]
        self.replaced += counts[2]
        self.repaired += counts[3]
        self.bad.extend(bad)
        self.repairs.extend(repairs[: max(0, MAX_REPAIRS - len(self.repairs))])

    def _add_sources(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self.sources[name] = self.sources.get(name, 0) + count

    def line(self) -> str:
        """Return the counts in one line, with the number of replaced samples per error code."""
        codes = Counter(entry.code for entry in self.bad)
        why = f" ({', '.join(f'{code} {count}' for code, count in codes.most_common())})" if codes else ""
        repaired = f" repaired={self.repaired}" if self.repaired else ""
        sources = "".join(f" {name}={count}" for name, count in self.sources.items())
        return f"planned={self.planned} delivered={self.delivered} replaced={self.replaced}{why}{repaired}{sources}"

    def as_dict(self) -> dict[str, object]:
        """Return the ledger as a JSON-serialisable dict, with paths escaped to ASCII."""
        counts = {"planned": self.planned, "delivered": self.delivered, "replaced": self.replaced}
        bad, repairs = ([_to_line(entry) for entry in entries] for entries in (self.bad, self.repairs))
        sources = {"sources": self.sources} if self.sources else {}
        return {"epoch": self.epoch, **counts, "bad": bad, "repaired": self.repaired, "repairs": repairs, **sources}


def _to_line(entry: BadSample) -> dict[str, object]:
    named = {name: getattr(entry, name) for name in ("sample", "code", "cause")}
    return {**named, "path": ascii(entry.path)[2:-1], "substitute": entry.substitute}


def _from_line(line: Mapping[str, Any]) -> BadSample:
    """Return the entry that `_to_line` saved. Raises the error that an invalid line causes."""
    path = line["path"].encode("ascii").decode("unicode_escape").encode("latin-1")
    entry = BadSample(line["sample"], line["code"], line["cause"], path, line["substitute"], -1)
    if (type(entry.sample), type(entry.substitute), type(entry.cause)) != (int, int, str):
        raise TypeError("a line has values of wrong types")
    if entry.code not in ERROR_CODES:
        raise ValueError(f"unknown code {entry.code!r}")
    return entry
