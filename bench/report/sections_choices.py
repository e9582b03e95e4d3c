"""Sections on choices: changes, candidates, caches, the learning rate; and on how to repeat the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.bench.record.advice import Advice
from penstock.bench.record.bench_record import KIND_NAMES, BenchRecord, Tried, TriedAdvice
from penstock.bench.record.cache_advice import CacheAdvice, StorageKind
from penstock.bench.report.charts import Bar, BarChart, Line, LineChart, log_share, log_ticks, ticks
from penstock.bench.report.section_types import Figure, Section, Table
from penstock.bench.report.text import rate_text, repeat_command, spread_text, times_text
from penstock.pipelines.errors import size_text

_ROOM = 1.05  # axis length, times the longest bar
_FIRST_UPDATES = 10  # updates of a sweep that set the scale, before the loss diverges
_LOSS_ROOM = 1.5  # height of the axis, times the highest of their losses


def changes_section(record: BenchRecord) -> Section:
    """Return the section of changes, their predicted gain and, if tried, their measured gain."""
    title = "What to change"
    advice = record.verdict.advice if record.verdict else None
    tried = {each.what: each for each in record.applied}
    if advice is None and not tried:
        return Section(title=title, missing="this record was written by a version without advice")
    rows = [_change(each, tried.pop(each.what, None), record) for each in advice or ()]
    rows += [_change(None, each, record) for each in tried.values()]  # tried, but no longer part of the verdict
    if not rows:
        return Section(title=title, texts=["Nothing: according to this run's figures, no change gains anything."])
    columns = [("change", "text"), ("images/s of", "short"), ("before", "number"), ("predicted", "number")]
    columns += [("times", "number"), ("measured", "number"), ("times", "number"), ("why", "text")]
    if not any(row[5] for row in rows):  # none was tried
        columns, rows = [*columns[:5], columns[7]], [(*row[:5], row[7]) for row in rows]
    caption = "Predictions are derived from this run's figures and capped at the next ceiling."
    return Section(title=title, tables=[Table(caption=caption, columns=columns, rows=rows)])


def _change(advice: Advice | None, tried: TriedAdvice | None, record: BenchRecord) -> tuple[str, ...]:
    either = tried or advice
    assert either is not None
    before, predicted = record.rate(either.quantity), advice.images_per_s if advice else None
    measured = tried.measured if tried and tried.measured else None
    if tried and measured:
        before, predicted = tried.before, tried.predicted
    remarks = [advice.why] if advice else []
    if tried:
        remarks += [tried.note, f"not tried: {tried.failed}" * bool(tried.failed)]
    return (
        either.what,
        KIND_NAMES.get(either.quantity, either.quantity),
        rate_text(before),
        rate_text(predicted),
        times_text(predicted, before),
        rate_text(measured),
        times_text(measured, before),
        "; ".join(filter(None, remarks)),
    )


def search_sections(record: BenchRecord) -> Iterator[Section]:
    """Yield the section of the ways of loading that the search tried, if any."""
    if not record.candidates:
        return
    candidates = sorted(record.candidates, key=lambda each: -(each.images_per_s or 0.0))
    chosen = (record.chosen or candidates[0]).name
    columns = [("way of loading", "text"), ("images/s", "number"), ("processors", "number"), ("memory", "number")]
    yield Section(
        title="Settings tried first",
        figures=[
            Figure(
                chart=_bars([_candidate_bar(each, chosen) for each in candidates if each.images_per_s], "images/s"),
                caption="Short measurements; the choice has the loader's colour.",
            )
        ],
        tables=[
            Table(
                caption="Ways of loading.",
                columns=[*columns, ("excluded because", "text")],
                rows=[_candidate_row(each) for each in candidates],
            )
        ],
    )


def _candidate_bar(tried: Tried, chosen: str) -> Bar:
    kind, rate = "loader" if tried.name == chosen else "work", tried.images_per_s or 0.0
    return Bar(label=tried.name, end=rate, value=rate_text(rate), kind=kind)


def _candidate_row(tried: Tried) -> tuple[str, ...]:
    processors = "" if tried.cpu_cores is None else f"{tried.cpu_cores:.1f}"
    memory = "" if tried.memory_mb is None else f"{tried.memory_mb:,.0f} MB"
    return tried.name, rate_text(tried.images_per_s), processors, memory, tried.why


def tradeoff_section(cache: CacheAdvice) -> Section:
    """Return the section of the size and rate of each kind of cache of the data."""
    settings, files = cache.settings, cache.offers[0].images_per_s
    rows = [_storage_row(each, files) for each in cache.offers]
    columns = [("stored as", "text"), ("whole data", "number"), ("images/s", "number")]
    columns += [("lowest to highest round", "number"), ("times the files", "number"), ("pixels", "number")]
    caption = "Names are options of penstock cache build; dB: PSNR of the served pixels against the source."
    about = (
        f"A sample of {cache.data.get('sample'):,} images, stored in each way and loaded by {cache.workers} workers "
        f"as uint8 batches of {settings.batch_size:,}; {settings.rounds} alternating rounds of {settings.seconds:g} s."
    )
    rates, sizes = zip(*map(_storage_bars, cache.offers), strict=True)
    return Section(
        title="Size and rate of a cache",
        texts=[about],
        figures=[
            Figure(chart=_bars(rates, "images/s"), caption="Longer is faster."),
            Figure(chart=_bars(sizes, "kB per image on the disk"), caption="Shorter is smaller."),
        ],
        tables=[Table(caption=caption, columns=columns, rows=rows)],
        notes=cache.notes,
    )


def _storage_row(stored: StorageKind, files: float) -> tuple[str, ...]:
    return (
        stored.name,
        size_text(round(stored.whole_bytes)),
        rate_text(stored.images_per_s),
        spread_text(stored.rounds),
        times_text(stored.images_per_s, files),
        stored.quality,
    )


def _storage_bars(stored: StorageKind) -> tuple[Bar, Bar]:
    """Return the bars of rate and size."""
    rate, size, label = stored.images_per_s, stored.bytes_an_image / 1e3, f"{stored.name}, {stored.quality}"
    kind = "other" if stored.name == "files" else "loader" if stored.lossless else "both"
    spread = (min(stored.rounds), max(stored.rounds))
    return (
        Bar(label=label, end=rate, value=rate_text(rate), kind=kind, spread=spread),
        Bar(label=label, end=size, value=f"{size:,.0f} kB", kind=kind),
    )


def _bars(bars: list[Bar] | tuple[Bar, ...], axis: str) -> BarChart:
    limit = _ROOM * max((max(bar.end, *(bar.spread or (0.0,))) for bar in bars), default=0.0)
    return BarChart(rows=bars, axis=axis, limit=limit or 1.0)


def sweep_section(sweep: Mapping[str, Any]) -> Section:
    """Return the section of the JSON of `penstock train --find-lr`: loss over learning rate."""
    rates, low, high = sweep["rates"], min(sweep["rates"]), max(sweep["rates"])
    top = _LOSS_ROOM * max(sweep["smoothed"][:_FIRST_UPDATES]) or 1.0
    suggestion = f"{sweep['suggestion']:.2g}"

    def line(label: str, kind: str, losses: Sequence[float]) -> Line:
        points = [(log_share(rate, low, high), loss / top) for rate, loss in zip(rates, losses, strict=True)]
        return Line(label=label, kind=kind, parts=[points])

    chart = LineChart(
        lines=[line("loss of each update", "work", sweep["losses"]), line("running mean", "loader", sweep["smoothed"])],
        x_axis="learning rate",
        y_axis="loss",
        x_ticks=list(log_ticks(low, high)),
        y_ticks=list(ticks(top)),
        marks=[(f"{100 * log_share(sweep['suggestion'], low, high):.2f}%", f"suggestion {suggestion}")],
        text=f"Line chart, loss over learning rate, from {low:.2g} to {high:.2g}. Suggestion: {suggestion}.",
    )
    caption = "The learning rate grows with each update; the suggestion is where the running mean falls fastest."
    return Section(title="Loss over learning rate", figures=[Figure(chart=chart, caption=caption)])


def machine_section(record: BenchRecord) -> Section:
    """Return the section of the machine, the versions, the data and the loader."""
    about = {name: value for name, value in record.environment.items() if name != "packages"}
    names = {"cpu": "processor", "cpus": "processors", "memory_gb": "memory, GB", "gpu": "GPU"}
    names |= {"gpu_power_limit_w": "GPU's power limit, W", "gpu_clock_mhz": "GPU's clock, MHz"}
    names |= {"gpu_max_clock_mhz": "GPU's highest clock, MHz"}
    packages = record.environment.get("packages")
    return Section(
        title="Machine, versions, data",
        facts=[
            ("Machine", _facts(about, names)),
            ("Versions", _facts(packages if isinstance(packages, Mapping) else {}, {})),
            ("Data", _facts(record.data, {"bytes_an_image": "bytes per image"})),
            ("Loader", _facts(record.loader, {})),
        ],
    )


def _facts(about: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(names.get(name, name.replace("_", " ")), _fact(value)) for name, value in about.items()]


def _fact(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)


def repeat_section(record: BenchRecord) -> Section:
    """Return the section with the command line to repeat the run and the call to paste."""
    code = [{"caption": "To repeat this measurement:", "text": repeat_command(record.settings)}]
    if record.verdict and record.verdict.call:
        code.append({"caption": "The measured loader, to paste:", "text": record.verdict.call.rstrip()})
    texts = ["DATA stands for the measured folder or cache: a record does not contain paths."]
    return Section(title="How to repeat it", texts=texts, code=code)
