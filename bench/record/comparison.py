"""Two benchmark records side by side: what became faster or slower, and what is only noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from penstock.bench.record.record import BenchSettings

OURS = ("loader", "both")  # kinds of measurement that a change of Penstock may make slower
# What else was measured, or for how long, changes no figure.
_OF_NO_CONSEQUENCE = ("rounds", "seconds", "baseline", "tune", "tune_seconds", "apply", "workers")
_MACHINE = ("cpu", "cpus", "gpu")


@dataclass(frozen=True, kw_only=True)
class Change:
    """One measurement in two records: images/s of each, with (lowest, highest) round; ratio: the second to the first.

    within_noise: each median lies inside the spread of the other's rounds.
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
    """changes: of every measurement in both; differs: why they are not comparable; versions: what else differs."""

    changes: tuple[Change, ...]
    differs: tuple[str, ...]
    versions: tuple[str, ...]

    def slower(self, ratio: float) -> list[Change]:
        """Those of OURS that are below `ratio` and not within the noise."""
        return [c for c in self.changes if c.kind in OURS and c.ratio < ratio and not c.within_noise]

    def as_dict(self) -> dict[str, object]:
        """JSON-serialisable."""
        return asdict(self)


def read_record(path: Path) -> dict[str, Any]:
    """What `penstock bench --json` wrote. Raises ValueError for another file, OSError."""
    try:
        document = json.loads(path.read_text())
        for measured in document["measured"]:
            float(measured["images_per_s"]), float(measured["low"]), float(measured["high"])
            str(measured["kind"]), str(measured["name"])
        document["settings"].items(), document["environment"].items(), document["data"].items()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: this is no record of `penstock bench` ({type(error).__name__}: {error})") from None
    return document  # type: ignore[no-any-return]


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Two records as read_record gives them. Raises ValueError if no measurement is in both."""
    seconds = {_key(measured): measured for measured in after["measured"]}
    changes = [_change(m, seconds[_key(m)]) for m in before["measured"] if _key(m) in seconds and m["images_per_s"]]
    if not changes:
        raise ValueError("no measurement is in both records")
    packages = [record["environment"].get("packages", {}) for record in (before, after)]
    commits = [record["environment"].get("commit") for record in (before, after)]
    return Comparison(
        changes=tuple(changes),
        differs=tuple(_differences(before, after)),
        versions=(
            *_unequal("", packages[0], packages[1]),
            *_unequal("", {"commit": commits[0]}, {"commit": commits[1]}),
        ),
    )


def _key(measured: Mapping[str, Any]) -> tuple[str, str]:
    return measured["kind"], measured["name"]


def _change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    old, new = before["images_per_s"], after["images_per_s"]
    old_spread, new_spread = (before["low"], before["high"]), (after["low"], after["high"])
    inside = old_spread[0] <= new <= old_spread[1] and new_spread[0] <= old <= new_spread[1]
    return Change(
        kind=before["kind"],
        name=before["name"],
        before=old,
        after=new,
        before_spread=old_spread,
        after_spread=new_spread,
        ratio=new / old,
        within_noise=inside,
    )


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Machine, data and settings that are not the same; a setting that an older record lacks had its default."""
    for_machine = [{name: record["environment"].get(name) for name in _MACHINE} for record in (before, after)]
    yield from _unequal("machine: ", *for_machine)
    prints = [{"fingerprint": record["data"].get("fingerprint")} for record in (before, after)]
    yield from _unequal("data: ", *prints)
    defaults = {field.name: field.default for field in fields(BenchSettings)}
    settings = [
        {name: value for name, value in (defaults | record["settings"]).items() if name not in _OF_NO_CONSEQUENCE}
        for record in (before, after)
    ]
    yield from _unequal("settings: ", *settings)
    used = [{name: record.get(name) for name in ("workers", "decoder")} for record in (before, after)]
    yield from _unequal("settings: ", *used)


def _unequal(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys([*before, *after])
    pairs = [(name, before.get(name), after.get(name)) for name in names]
    return [f"{what}{name} {old!r} and {new!r}" for name, old, new in pairs if old != new]
