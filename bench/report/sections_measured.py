"""Sections of the report page on what was measured: rates, and the parts of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.bench.record.bench_record import KIND_NAMES, BenchRecord, Measured
from penstock.bench.report.charts import Bar, BarChart
from penstock.bench.report.sections import Figure, Section, Table
from penstock.bench.report.step_lanes import Lane, step_lanes
from penstock.bench.report.text import ledger_texts, ms_text, rate_text, resource_texts, spread_text
from penstock.bench.verdict.figures import Figures

_OURS = ("loader", "both", "other", "baseline")  # kinds that the axis has room for; ceilings may be broken off
_ROOM = 1.1  # of the longest of them


def measurements_section(record: BenchRecord) -> Section:
    """Return the section of every measurement and the ceilings."""
    batch, kinds = record.settings.batch_size, list(KIND_NAMES)
    rows = []
    for each in sorted(record.measured, key=lambda m: kinds.index(m.kind) if m.kind in kinds else len(kinds)):
        ms = ms_text(1e3 * batch / each.images_per_s) if each.images_per_s else ""
        waits = [f"{each.wait_share:.0%} of the step waits for data"] if each.wait_share is not None else []
        took = ", ".join([*waits, *resource_texts(each.resources)])
        kind, spread = KIND_NAMES.get(each.kind, each.kind), spread_text((each.low, each.high))
        rows.append((each.label, kind, rate_text(each.images_per_s), spread, ms, took))
    columns = [("measured", "text"), ("what", "short"), ("images/s", "number"), ("lowest to highest round", "number")]
    columns += [(f"a batch of {batch:,}", "number"), ("took", "text")]
    chart = rates_chart(record)
    caption = (
        "Medians over the rounds; the thin line is the lowest to the highest round. Hatched bars are ceilings: one "
        "part of the work alone, on one thread unless it says otherwise; a broken one goes on beyond the axis."
    )
    if chart.ceiling:
        caption += f" The dashed line is what decoding allows on all processors, {rate_text(chart.ceiling)} images/s."
    return Section(
        title="What was measured",
        figures=[Figure(chart=chart, caption=caption)],
        tables=[Table(caption="Every measurement; CPU is of all processors.", columns=columns, rows=rows)],
        notes=(*record.notes, *ledger_texts(record.ledger)),
    )


def rates_chart(record: BenchRecord) -> BarChart:
    """Return the chart of all rates; ceilings far above what was reached are broken off."""
    rows: list[Bar | str] = ["What was reached"]
    rows += [_bar(measured) for kind in (*_OURS, "model") for measured in record.all_of(kind)]
    figures = Figures(record)
    whole = figures.decode_ceiling if record.loader.get("decodes_on") is None else 0.0
    ceilings = sorted(record.all_of("ceiling"), key=lambda each: each.images_per_s)
    if ceilings:
        rows.append("Ceilings: one part alone")
        if whole:
            used = figures.processors_used
            label = f"decode + resize, {record.decoder}, times {used} processor{'s' * (used > 1)}"
            rows.append(Bar(label=label, end=whole, value=rate_text(whole), kind="ceiling"))
        rows += [_bar(measured) for measured in ceilings]
    reached = [measured.high for measured in record.measured if measured.kind in _OURS]
    limit = _ROOM * max([*reached, figures.decode_ceiling]) or 1.0
    return BarChart(rows=rows, axis="images/s", limit=limit, ceiling=whole or None)


def _bar(measured: Measured) -> Bar:
    return Bar(
        label=measured.label,
        end=measured.images_per_s,
        value=rate_text(measured.images_per_s),
        kind=measured.kind,
        spread=(measured.low, measured.high),
    )


def step_section(record: BenchRecord) -> Section:
    """Return the section of the parts of a step, and of the step as it ran."""
    lanes, batch = step_lanes(record), record.settings.batch_size
    title = "Where the milliseconds of a batch go"
    if not any(lane.stages for lane in lanes):
        return Section(title=title, missing="this record holds no rate of the loader")
    caption = (
        "Each part was timed alone; what workers do is divided by the workers that can run at once. Parts of a lane "
        "follow one another, lanes run side by side, each on another batch."
    )
    if any(stage.waiting for lane in lanes for stage in lane.stages):
        caption += " The first part of loader + model, in another colour, is the share of the step that waits for data."
    chart = lanes_chart(lanes, batch)
    return Section(title=title, texts=_bounds(record, lanes), figures=[Figure(chart=chart, caption=caption)])


def lanes_chart(lanes: Sequence[Lane], batch_size: int) -> BarChart:
    """Return the chart of a batch's milliseconds: the stages of a lane one after another, lanes side by side."""
    rows: list[Bar | str] = []
    for lane in lanes:
        rows.append(lane.title + ("" if lane.measured or len(lane.stages) < 2 else f": {ms_text(lane.ms)} in all"))
        begin = 0.0
        for stage in lane.stages:
            rows.append(replace(stage, begin=begin, end=begin + stage.end))
            begin += 0.0 if lane.measured else stage.end
    longest = max(lane.ms for lane in lanes)
    return BarChart(rows=rows, axis=f"milliseconds of a batch of {batch_size:,}", limit=longest or 1.0)


def _bounds(record: BenchRecord, lanes: Sequence[Lane]) -> list[str]:
    """Explain how long a step is by its lanes: no sum of them, and no shorter than the longest."""
    parts, texts = [lane for lane in lanes if not lane.measured], []
    if record.loader.get("decodes_on") is not None:
        texts.append("DALI reads and decodes by itself: its parts were not timed alone, and it has no lane here.")
    if len(parts) < 2:
        return texts
    longest = max(parts, key=lambda lane: lane.ms)
    shared = (
        f"; lanes that share the same {record.environment.get('cpus')} processors, as they do on a CPU, take about "
        f"as long as all of them together, {ms_text(sum(lane.ms for lane in parts))}"
    )
    texts.append(
        "Lanes overlap, so they do not add up. With a processor for each, a step would last as long as the longest "
        f"lane, {ms_text(longest.ms)} ({longest.title.partition(',')[0].lower()})"
        f"{shared * (record.settings.device == 'cpu')}."
    )
    return texts
