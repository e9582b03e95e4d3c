"""Compares two benchmark records: what became faster or slower, and what is only noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.bench.record.bench_record import BenchRecord, Measured
from penstock.pipelines.errors import one_line

OURS = ("loader", "both")  # kinds of measurement that a change of Penstock may make slower
# Settings for other measurements or their length do not change the compared figures.
_WITHOUT_EFFECT = ("rounds", "seconds", "baseline", "tune", "tune_seconds", "apply", "workers", "max_bad")
_MACHINE = ("cpu", "cpus", "gpu")


@dataclass(frozen=True, kw_only=True)
class ChangedRate:
    """Hold one measurement of two records.

    Attributes:
        before, after: images/s in the first and in the second record.
        before_spread, after_spread: (lowest, highest) round, in images/s.
        ratio: `after` divided by `before`.
        within_noise: whether each median lies inside the spread of the other's rounds.
    """

    kind: str
    name: str
    before: float
    after: float
    before_spread: tuple[float, float]
    after_spread: tuple[float, float]
    ratio: float
    within_noise: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold the comparison of two records.

    Attributes:
        changes: one for each measurement in both records.
        differs: differences of machine, data and settings that make the records incomparable.
        versions: packages and commits that differ.
    """

    changes: tuple[ChangedRate, ...]
    differs: tuple[str, ...]
    versions: tuple[str, ...]

    def slower(self, ratio: float) -> list[ChangedRate]:
        """Return the changes of OURS that are below `ratio` and not within the noise."""
        return [c for c in self.changes if c.kind in OURS and c.ratio < ratio and not c.within_noise]


def compare(before: BenchRecord, after: BenchRecord) -> Comparison:
    """Compare two records. Raises ValueError if they have no measurement in common."""
    others = {(m.kind, m.name): m for m in after.measured}
    pairs = [(m, others[m.kind, m.name]) for m in before.measured if (m.kind, m.name) in others and m.images_per_s]
    if not pairs:
        raise ValueError("the records have no measurement in common")
    packages, commits = (
        [record.environment.get(name) for record in (before, after)] for name in ("packages", "commit")
    )
    versions = [each if isinstance(each, Mapping) else {} for each in packages]
    return Comparison(
        changes=tuple(_changed_rate(*pair) for pair in pairs),
        differs=tuple(_differences(before, after)),
        versions=(*_unequal("", *versions), *_unequal("", *({"commit": each} for each in commits))),
    )


def _changed_rate(before: Measured, after: Measured) -> ChangedRate:
    old, new = before.images_per_s, after.images_per_s
    return ChangedRate(
        kind=one_line(before.kind),
        name=one_line(before.name),
        before=old,
        after=new,
        before_spread=(before.low, before.high),
        after_spread=(after.low, after.high),
        ratio=new / old,
        within_noise=before.low <= new <= before.high and after.low <= old <= after.high,
    )


def _differences(before: BenchRecord, after: BenchRecord) -> Iterator[str]:
    """Yield differences of machine, data and settings; a setting missing in an older record had its default."""
    both = (before, after)
    yield from _unequal("machine: ", *({name: record.environment.get(name) for name in _MACHINE} for record in both))
    yield from _unequal("data: ", *({"fingerprint": record.data.get("fingerprint")} for record in both))
    settings = ({k: v for k, v in asdict(record.settings).items() if k not in _WITHOUT_EFFECT} for record in both)
    yield from _unequal("settings: ", *settings)
    yield from _unequal("settings: ", *({"workers": record.workers, "decoder": record.decoder} for record in both))


def _unequal(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the differences as text."""
    pairs = [(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    return [f"{what}{name} {old!r} and {new!r}" for name, old, new in pairs if old != new]
