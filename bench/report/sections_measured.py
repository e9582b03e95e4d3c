"""Sections of the report page on what was measured: rates, the parts of a step, throughput over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.bench.record.bench_record import KIND_NAMES, OVER_TIME, BenchRecord, Measured
from penstock.bench.report.charts import Bar, BarChart, Line, LineChart, ticks
from penstock.bench.report.sections import Figure, Section, Table
from penstock.bench.report.step_lanes import Lane, step_lanes
from penstock.bench.report.text import ledger_texts, ms_text, rate_text, resource_texts, spread_text
from penstock.bench.verdict.figures import Figures

_OURS = ("loader", "both", "other", "baseline")  # kinds that the axis has room for; ceilings may be broken off
_ROOM = 1.1  # of the longest of them
_GAP = 0.03  # of all seconds, between rounds


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


def over_time_section(record: BenchRecord) -> Section:
    """Return the section of how the loaders went on, window by window: alone on one axis, with the model on another."""
    title = "Throughput over time"
    paced = [m for kind in OVER_TIME for m in record.all_of(kind) if any(m.over_time)]
    if not paced:
        return Section(title=title, missing="this record was written by a version that did not keep it")
    rows = []
    for each in paced:
        rates = [rate for windows in each.over_time for _, rate in windows]
        rounds = ", ".join(map(rate_text, each.rounds))
        rows.append((each.label, rounds, rate_text(min(rates)), rate_text(max(rates))))
    columns = [("measured", "text"), ("images/s, round by round", "number"), ("slowest window", "number")]
    figures = [
        Figure(chart=over_time_chart(of_kind), caption=caption)
        for caption, of_kind in (
            ("Loaders alone, one after another in each round.", [m for m in paced if m.kind != "both"]),
            ("The loader with the model.", [m for m in paced if m.kind == "both"]),
        )
        if of_kind
    ]
    texts = ["Each step of a line is the mean of one window of batches, after warm-up."]
    caption = "Medians of the windows of each round."
    table = Table(caption=caption, columns=[*columns, ("fastest window", "number")], rows=rows)
    return Section(title=title, texts=texts, figures=figures, tables=[table])


def over_time_chart(paced: Sequence[Measured]) -> LineChart:
    """Return the chart of each round's windows, one measurement over the other, round after round."""
    lengths: list[float] = []  # seconds of the longest measurement of each round
    for each in paced:
        for number, windows in enumerate(each.over_time):
            lengths += [0.0] * (number + 1 - len(lengths))
            lengths[number] = max(lengths[number], sum(seconds for seconds, _ in windows))
    gap = _GAP * sum(lengths)
    begins = [sum(lengths[:number]) + gap * number for number in range(len(lengths))]
    end = (begins[-1] + lengths[-1]) or 1.0
    highest = 1.08 * max(rate for each in paced for windows in each.over_time for _, rate in windows) or 1.0
    lines = [Line(label=_median_text(m), kind=m.kind, parts=list(_steps(m, begins, end, highest))) for m in paced]
    said = "; ".join(f"{each.label}: {', '.join(map(rate_text, each.rounds))}" for each in paced)
    return LineChart(
        lines=lines,
        x_axis="seconds, one round after another",
        y_axis="images/s",
        x_ticks=list(ticks(end)),
        y_ticks=list(ticks(highest)),
        marks=[(f"{100 * begin / end:.2f}%", f"round {number}") for number, begin in enumerate(begins, 1)],
        text=f"Line chart, images/s over seconds. {said}.",
    )


def _median_text(measured: Measured) -> str:
    return f"{measured.label}: median {rate_text(measured.images_per_s)}"


def _steps(
    measured: Measured, begins: Sequence[float], end: float, highest: float
) -> Sequence[Sequence[tuple[float, float]]]:
    """Return the corners of each round's steps, in shares of the axes."""
    parts = []
    for begin, windows in zip(begins, measured.over_time, strict=False):
        now, part = begin, []
        for seconds, rate in windows:
            part += [(now / end, rate / highest), ((now + seconds) / end, rate / highest)]
            now += seconds
        parts.append(part)
    return parts
