"""Sections of the report page on the measurements: rates, the parts of a step, throughput over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from penstock.bench.record.bench_record import (
    COPY,
    COPY_AND_NORMALISE,
    DECODE,
    KIND_NAMES,
    NORMALISE,
    OVER_TIME,
    READ_COLD,
    READ_WARM,
    RESIZE,
    BenchRecord,
    Measured,
)
from penstock.bench.report.charts import Bar, BarChart, Line, LineChart, ticks
from penstock.bench.report.section_types import Figure, Section, Table
from penstock.bench.report.text import ledger_texts, ms_text, rate_text, resource_texts, spread_text
from penstock.bench.verdict.figures import Figures

_OURS = ("loader", "both", "other", "baseline")  # kinds that set the length of the axis; ceilings may be broken off
_ROOM = 1.1  # axis length, times the longest of them
_GAP = 0.03  # share of all seconds, between rounds


def measurements_section(record: BenchRecord) -> Section:
    """Return the section of all measurements and ceilings."""
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
        "part of the work alone, on one thread unless stated otherwise; a broken bar is longer than the axis."
    )
    if chart.ceiling:
        caption += f" The dashed line is the decode ceiling of all processors, {rate_text(chart.ceiling)} images/s."
    return Section(
        title="Measurements",
        figures=[Figure(chart=chart, caption=caption)],
        tables=[Table(caption="All measurements; CPU is a share of all processors.", columns=columns, rows=rows)],
        notes=(*record.notes, *ledger_texts(record.ledger)),
    )


def rates_chart(record: BenchRecord) -> BarChart:
    """Return the chart of all rates; ceilings far above the reached rates are broken off."""
    rows: list[Bar | str] = ["Reached rates"]
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
    """Return the section of the parts of a step and of the measured step."""
    title, parts, ran = "Where the milliseconds of a batch go", step_lanes(record), _as_it_ran(record)
    if not parts and not ran:
        return Section(title=title, missing="this record does not contain a rate of the loader")
    caption = (
        "Each part was timed alone; the workers' parts are divided by the number that can run at once. Parts of a lane "
        "run one after another, lanes run in parallel, each on another batch."
    )
    if any(bar.waiting for bar in ran):
        caption += " The first part of loader + model, in another colour, is the share of the step that waits for data."
    rows: list[Bar | str] = []
    for lane, stages in parts.items():
        rows.append(f"{lane}: {ms_text(_sum_ms(stages))} in all" if len(stages) > 1 else lane)
        ends = accumulate(bar.end for bar in stages)
        rows += [replace(bar, begin=end - bar.end, end=end) for bar, end in zip(stages, ends, strict=True)]
    rows += ["Measured in the run", *ran] if ran else []
    limit = max(row.end for row in rows if isinstance(row, Bar))
    chart = BarChart(rows=rows, axis=f"milliseconds of a batch of {record.settings.batch_size:,}", limit=limit)
    return Section(title=title, texts=_bounds(record, parts), figures=[Figure(chart=chart, caption=caption)])


def step_lanes(record: BenchRecord) -> dict[str, list[Bar]]:
    """Return lane -> its stages, one after another, as bars of their milliseconds; lanes run in parallel.

    If nothing runs in parallel (no workers, all on the CPU), the parts form one lane. For DALI the workers' lane is
    left out, because the ceilings do not measure its decoder.
    """
    figures = Figures(record)
    used = figures.processors_used
    lanes = {
        "Requests": _stage(record, "fetch", figures.fetched),
        f"{used} workers at once" if used > 1 else "One worker": _working(record, figures),
        "Feed": _feeding(record),
        "Model": _stage(
            record, f"{record.settings.model}: forward, backward, update", record.rate("model"), kind="model"
        ),
    }
    if record.workers == 0 and record.settings.device == "cpu":
        stages = [bar for lane, bars in lanes.items() if lane != "Requests" for bar in bars]
        return {"One process, one thing after another": stages} if stages else {}
    there = [(lane, stages) for lane, stages in lanes.items() if stages]
    batches = [f"n + {ahead}" if ahead else "n" for ahead in reversed(range(len(there)))]
    return {f"{lane}, on batch {batch}": stages for (lane, stages), batch in zip(there, batches, strict=True)}


def _stage(
    record: BenchRecord, name: str, rate: float | None, *, kind: str = "work", at_once: int = 1, waits: float = 0.0
) -> list[Bar]:
    """Return the bar of a stage if it has a rate; `waits` is the share of it that waits for data."""
    if not rate:
        return []
    ms = 1e3 * record.settings.batch_size / rate / at_once
    label = name + (f" ({waits:.0%} of it waits for data)" if waits else "")
    return [Bar(label=label, value=ms_text(ms), kind=kind, end=ms, waiting=waits * ms)]


def _working(record: BenchRecord, figures: Figures) -> list[Bar]:
    if record.loader.get("decodes_on") is not None:
        return []
    reading = READ_COLD if figures.from_storage else READ_WARM
    parts = (("read", reading), ("decode", DECODE), ("resize", RESIZE))
    stages = (_stage(record, name, record.rate("ceiling", of), at_once=figures.processors_used) for name, of in parts)
    return [bar for bars in stages for bar in bars]


def _feeding(record: BenchRecord) -> list[Bar]:
    copy = _stage(record, "copy to device", record.rate("ceiling", COPY))
    both = _stage(record, "copy + normalise", record.rate("ceiling", COPY_AND_NORMALISE))
    if copy and both:
        rest = both[0].end - copy[0].end
        return [*copy, replace(both[0], label="normalise", value=ms_text(rest), end=rest)] if rest > 0 else both
    return copy or both or _stage(record, "normalise", record.rate("ceiling", NORMALISE))


def _as_it_ran(record: BenchRecord) -> list[Bar]:
    both = record.find("both")
    waits = (both.wait_share or 0.0) if both else 0.0
    return [
        *_stage(record, "loader alone", record.rate("loader"), kind="loader"),
        *_stage(record, "loader + model", record.rate("both"), kind="both", waits=waits),
    ]


def _sum_ms(stages: Sequence[Bar]) -> float:
    return sum(bar.end for bar in stages)


def _bounds(record: BenchRecord, lanes: Mapping[str, Sequence[Bar]]) -> list[str]:
    """Explain how the lanes determine the length of a step: not their sum, but at least the longest."""
    texts = []
    if record.loader.get("decodes_on") is not None:
        texts.append("DALI has its own reader and decoder: its parts were not timed alone and have no lane here.")
    if len(lanes) < 2:
        return texts
    sums = {lane: _sum_ms(stages) for lane, stages in lanes.items()}
    longest = max(sums, key=lambda lane: sums[lane])
    shared = (
        f"; lanes that share the same {record.environment.get('cpus')} processors, as on a CPU, take about "
        f"as long as all of them together, {ms_text(sum(sums.values()))}"
    )
    texts.append(
        "Lanes overlap, so they do not add up. With a processor for each, a step would last as long as the longest "
        f"lane, {ms_text(sums[longest])} ({longest.partition(',')[0].lower()})"
        f"{shared * (record.settings.device == 'cpu')}."
    )
    return texts


def over_time_section(record: BenchRecord) -> Section:
    """Return the section of rates over time, window by window: loaders alone on one axis, with the model on another."""
    title = "Throughput over time"
    paced = [m for kind in OVER_TIME for m in record.all_of(kind) if any(m.over_time)]
    if not paced:
        return Section(title=title, missing="this record was written by a version that did not store it")
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
    """Return the chart of the windows of all rounds in order, with one line per measurement."""
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
    rounds = "; ".join(f"{each.label}: {', '.join(map(rate_text, each.rounds))}" for each in paced)
    return LineChart(
        lines=lines,
        x_axis="seconds, one round after another",
        y_axis="images/s",
        x_ticks=list(ticks(end)),
        y_ticks=list(ticks(highest)),
        marks=[(f"{100 * begin / end:.2f}%", f"round {number}") for number, begin in enumerate(begins, 1)],
        text=f"Line chart, images/s over seconds. {rounds}.",
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
