"""Sections of the report page on what was measured: rates, the step, throughput over time."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench.measure.resources import Resources
from penstock.bench.record.record import OVER_TIME, BenchRecord, Measured
from penstock.bench.report.bar_charts import lanes_chart, rates_chart
from penstock.bench.report.pace_chart import pace_plot
from penstock.bench.report.sections import KIND_NAMES, Section, Table, charted, drawn, measured_name
from penstock.bench.report.step_lanes import Lane, step_lanes
from penstock.bench.report.text import ms_text, rate_text, spread_text


def measurements_section(record: BenchRecord) -> Section:
    """Every measurement, beside its ceilings."""
    batch, kinds = record.settings.batch_size, list(KIND_NAMES)
    rows = []
    for each in sorted(record.measured, key=lambda m: kinds.index(m.kind) if m.kind in kinds else len(kinds)):
        ms = ms_text(1e3 * batch / each.images_per_s) if each.images_per_s else ""
        waits = f"{each.wait_share:.0%} of the step waits for data" if each.wait_share is not None else ""
        took = "; ".join(filter(None, [waits, _taken(each.resources)]))
        spread = spread_text((each.low, each.high))
        kind, rate = KIND_NAMES.get(each.kind, each.kind), rate_text(each.images_per_s)
        rows.append((measured_name(each), kind, rate, spread, ms, took))
    columns = [("measured", "text"), ("what", "short"), ("images/s", "number"), ("lowest to highest round", "number")]
    columns += [(f"a batch of {batch:,}", "number"), ("took", "text")]
    figure = charted(
        rates_chart(record),
        "rates",
        "Medians over the rounds; the thin line is the lowest to the highest round. The axis is linear, so lengths "
        "compare; a bar that is broken off goes on beyond the page, and its figure is at its end. Ceilings are one "
        "part of the work alone, on one thread unless it says otherwise.",
    )
    caption = "Every measurement; processors are of all that this process may use."
    table = Table(caption=caption, columns=columns, rows=rows)
    return Section(title="What was measured", figures=[figure], tables=[table], notes=record.notes)


def _taken(resources: Resources | None) -> str:
    if resources is None:
        return ""
    parts = [f"{resources.cpu_cores:.1f} processors ({resources.cpu_share:.0%})"]
    for value, text in (
        (resources.others_share, "other programs {:.0%}"),
        (resources.memory_mb, "{:,.0f} MB of memory"),
        (resources.storage_mb_s, "{:,.1f} MB/s from storage"),
        (resources.gpu_share, "GPU {:.0%} busy"),
        (resources.gpu_memory_mb, "{:,.0f} MB on the GPU"),
    ):
        if value is not None:
            parts.append(text.format(value))
    return ", ".join(parts)


def waterfall_section(record: BenchRecord) -> Section:
    """The parts of a step, and the step as it ran."""
    lanes, batch = step_lanes(record), record.settings.batch_size
    title = "Where the milliseconds of a batch go"
    if not any(lane.stages for lane in lanes):
        return Section(title=title, texts=["This record holds no rate of the loader."])
    parts = [lane for lane in lanes if not lane.measured]
    caption = (
        "Each part was timed alone; what workers do is divided by the workers that can run at once. Parts of a lane "
        "follow one another, lanes run side by side, each on another batch."
    )
    if any(stage.waiting for lane in lanes for stage in lane.stages):
        caption += " The first part of loader + model, in another colour, is the share of the step that waits for data."
    rows = [
        (lane.title, stage.name, ms_text(stage.ms), f"{stage.waiting / stage.ms:.0%}" if stage.waiting else "")
        for lane in lanes
        for stage in lane.stages
    ]
    columns = [("lane", "text"), ("part", "short"), (f"a batch of {batch:,}", "number"), ("waits for data", "number")]
    return Section(
        title=title,
        texts=_bounds(record, parts),
        figures=[charted(lanes_chart(lanes, batch), "lanes", caption)],
        tables=[Table(caption="The same in figures.", columns=columns, rows=rows)],
    )


def _bounds(record: BenchRecord, parts: Sequence[Lane]) -> list[str]:
    """What the lanes say about the step: it is no sum of them, and no shorter than the longest."""
    texts = []
    if record.loader.get("decodes_on") is not None:
        texts.append("DALI reads and decodes by itself: its parts were not timed alone, and it has no lane here.")
    if len(parts) < 2:
        return texts
    longest = max(parts, key=lambda lane: lane.ms)
    texts.append(
        f"Lanes overlap, so they do not add up. With a processor for each, a step would last as long as the longest "
        f"lane, {ms_text(longest.ms)} ({longest.title.partition(',')[0].lower()})"
        + (
            f"; lanes that share the same {record.environment.get('cpus')} processors, as they do on a CPU, take about "
            f"as long as all of them together, {ms_text(sum(lane.ms for lane in parts))}."
            if record.settings.device == "cpu"
            else "."
        )
    )
    return texts


def over_time_section(record: BenchRecord) -> Section:
    """How the loaders went on, window by window: those alone on one axis, with the model on another."""
    title = "Throughput over time"
    kept = [m for kind in OVER_TIME for m in record.all_of(kind) if any(m.over_time)]
    if not kept:
        return Section(title=title, texts=["This record was written by a version that did not keep it."])
    rows = [_paced(measured) for measured in kept]
    columns = [("measured", "text"), ("images/s, round by round", "number"), ("slowest window", "number")]
    columns.append(("fastest window", "number"))
    said = {row[0]: f"{row[0]}: {row[1]}" for row in rows}
    figures = []
    for name, caption, shown in (
        ("alone", "Loaders alone, one after another in each round.", [m for m in kept if m.kind != "both"]),
        ("both", "The loader with the model.", [m for m in kept if m.kind == "both"]),
    ):
        if shown:
            label = "Line chart, images/s over seconds. " + "; ".join(said[measured_name(m)] for m in shown)
            figures.append(drawn(pace_plot(shown, f"pace-{name}"), label, caption))
    texts = ["Each step of a line is the mean of one window of batches, after warm-up."]
    table = Table(caption="Medians of the windows of each round.", columns=columns, rows=rows)
    return Section(title=title, texts=texts, figures=figures, tables=[table])


def _paced(measured: Measured) -> tuple[str, ...]:
    rates = [rate for windows in measured.over_time for _, rate in windows]
    rounds = ", ".join(map(rate_text, measured.rounds))
    return measured_name(measured), rounds, rate_text(min(rates)), rate_text(max(rates))
