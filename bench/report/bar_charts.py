"""The plots of the report page: rates and their ceilings, the waterfall of the step, candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.bench.record.record import BenchRecord, Measured
from penstock.bench.report.bar_chart import Bar, BarChart
from penstock.bench.report.step_lanes import Lane
from penstock.bench.report.svg import BOTH, CEILING, LOADER, MODEL, OTHER
from penstock.bench.report.text import ms_text, rate_text
from penstock.bench.verdict.figures import Figures

COLOURS = {"loader": LOADER, "both": BOTH, "model": MODEL, "baseline": OTHER, "other": OTHER, "ceiling": CEILING}
_OURS = ("loader", "both", "other", "baseline")
_ROOM = 1.1  # beyond the longest bar that is not broken off


def rates_chart(record: BenchRecord) -> BarChart:
    """Images/s of all that was measured, on one linear axis; ceilings far above what was reached are broken off."""
    rows: list[Bar | str] = ["What was reached"]
    rows += [_bar(measured) for kind in _OURS for measured in record.all_of(kind)]
    rows += [_bar(measured) for measured in record.all_of("model")]
    ceilings = record.all_of("ceiling")
    whole = Figures.of(record).decode_ceiling
    if ceilings:
        rows.append("Ceilings: one part alone")
        rows += list(_computed(record, whole))
        rows += [_bar(measured) for measured in sorted(ceilings, key=lambda each: each.images_per_s)]
    reached = [measured.high for measured in record.measured if measured.kind in _OURS]
    return BarChart(rows=rows, axis="images/s", limit=_ROOM * max([*reached, whole]) or 1.0)


def _bar(measured: Measured) -> Bar:
    return Bar(
        label=f"{measured.name}, {measured.note}" if measured.note else measured.name,
        end=measured.images_per_s,
        value=rate_text(measured.images_per_s),
        colour=COLOURS.get(measured.kind, OTHER),
        spread=(measured.low, measured.high),
    )


def _computed(record: BenchRecord, whole: float) -> Iterator[Bar]:
    if whole and record.loader.get("decodes_on") is None:
        used = Figures.of(record).processors_used
        label = f"decode + resize, {record.decoder}, times {used} processor{'s' * (used > 1)}"
        yield Bar(label=label, end=whole, value=rate_text(whole), colour=CEILING)


def lanes_chart(lanes: Sequence[Lane], batch_size: int) -> BarChart:
    """Milliseconds of a batch; the stages of a lane one after another, lanes side by side."""
    rows: list[Bar | str] = []
    for lane in lanes:
        rows.append(lane.title + ("" if lane.measured or len(lane.stages) < 2 else f": {ms_text(lane.ms)} in all"))
        begin = 0.0
        for stage in lane.stages:
            waits = f" ({stage.waiting / stage.ms:.0%} of it waits for data)" if stage.waiting else ""
            bar = Bar(
                label=stage.name + waits,
                begin=begin,
                end=begin + stage.ms,
                value=ms_text(stage.ms),
                colour=COLOURS.get(stage.kind, CEILING),
                waiting=stage.waiting,
            )
            rows.append(bar)
            begin += 0.0 if lane.measured else stage.ms
    longest = max(lane.ms for lane in lanes)
    return BarChart(rows=rows, axis=f"milliseconds of a batch of {batch_size:,}", limit=longest or 1.0)


def candidates_chart(candidates: Sequence[Mapping[str, Any]], chosen: str) -> BarChart:
    """Images/s of the ways of loading that were tried, in their order; chosen: the name of one."""
    rows = [
        Bar(
            label=str(each["name"]),
            end=float(each["images_per_s"]),
            value=rate_text(each["images_per_s"]),
            colour=LOADER if each["name"] == chosen else CEILING,
        )
        for each in candidates
        if each.get("images_per_s")
    ]
    return BarChart(rows=rows, axis="images/s", limit=_ROOM * max((bar.end for bar in rows), default=1.0))
