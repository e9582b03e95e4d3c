"""Sections of the report page on what can be chosen: changes, candidates, caches; and how to repeat the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.bench.record.record import BenchRecord
from penstock.bench.report.bar_charts import candidates_chart
from penstock.bench.report.sections import KIND_NAMES, Section, Table, charted, drawn, times_text
from penstock.bench.report.text import rate_text, repeat_command, spread_text
from penstock.bench.report.tradeoff_chart import quality_text, tradeoff_plot
from penstock.pipelines.errors import size_text


def changes_section(document: Mapping[str, Any], record: BenchRecord) -> Section:
    """What to change, what that would give, and where it was tried, what it gave."""
    title = "What to change"
    advice = (document.get("verdict") or {}).get("advice")
    applied = {each["what"]: each for each in document.get("applied") or ()}
    if advice is None and not applied:
        return Section(title=title, texts=["This record was written by a version that did not tell."])
    rows = [_change(each, applied.pop(each["what"], None), record) for each in advice or ()]
    rows += [_change({}, each, record) for each in applied.values()]  # advice that was followed by other advice
    if not rows:
        return Section(title=title, texts=["Nothing: this run's figures promise no gain from any change."])
    columns = [("change", "text"), ("images/s of", "short"), ("before", "number"), ("predicted", "number")]
    columns += [("times", "number"), ("measured", "number"), ("times", "number"), ("why", "text")]
    if not any(row[5] for row in rows):  # none was tried
        columns, rows = [*columns[:5], columns[7]], [(*row[:5], row[7]) for row in rows]
    caption = "Predictions follow from this run's own figures and stop at the next ceiling."
    return Section(title=title, tables=[Table(caption=caption, columns=columns, rows=rows)])


def _change(advice: Mapping[str, Any], done: Mapping[str, Any] | None, record: BenchRecord) -> tuple[str, ...]:
    done = done or {}
    quantity = str(done.get("quantity") or advice.get("quantity") or "loader")
    measured = done.get("measured") or None
    before = done["before"] if measured else record.rate(quantity)
    predicted = done.get("predicted") if measured else advice.get("images_per_s")
    remarks = [advice.get("why", ""), done.get("note", ""), done.get("failed") and f"not tried: {done['failed']}"]
    return (
        str(advice.get("what") or done["what"]),
        KIND_NAMES.get(quantity, quantity),
        rate_text(before),
        rate_text(predicted),
        times_text(predicted, before),
        rate_text(measured),
        times_text(measured, before),
        "; ".join(str(remark) for remark in remarks if remark),
    )


def search_sections(document: Mapping[str, Any]) -> Iterator[Section]:
    """What was tried before the measurements, if anything was: ways of loading, or the knobs of one."""
    candidates, tuned = document.get("candidates") or (), document.get("tuned") or {}
    tables, figures = [], []
    if candidates:
        ordered = sorted(candidates, key=lambda each: -float(each.get("images_per_s") or 0.0))
        tables.append(_candidates_table(ordered))
        chart = candidates_chart(ordered, (document.get("chosen") or ordered[0])["name"])
        figures.append(charted(chart, "candidates", "Short measurements; what was chosen is in the loader's colour."))
    if tuned:
        rows = [
            (name, json.dumps(each["chosen"]), *map(_listed, (each["tried"], each["failed"])))
            for name, each in tuned.items()
        ]
        columns = [("knob", "text"), ("chosen", "short"), ("images/s of each value", "text"), ("left out", "text")]
        tables.append(Table(caption="Knobs that were searched.", columns=columns, rows=rows))
    if tables:
        yield Section(title="What was tried first", figures=figures, tables=tables)


def _candidates_table(candidates: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            str(each["name"]),
            rate_text(each.get("images_per_s")),
            "" if each.get("cpu_cores") is None else f"{each['cpu_cores']:.1f}",
            "" if each.get("memory_mb") is None else f"{each['memory_mb']:,.0f} MB",
            str(each.get("why") or ""),
        )
        for each in candidates
    ]
    columns = [("way of loading", "text"), ("images/s", "number"), ("processors", "number"), ("memory", "number")]
    return Table(caption="Ways of loading.", columns=[*columns, ("out of the running", "text")], rows=rows)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {each if isinstance(each, str) else rate_text(each)}" for name, each in values.items())


def tradeoff_section(cache: Mapping[str, Any] | None) -> Section:
    """What each kind of cache of the data would take and give."""
    title = "What a cache would take and give"
    if not cache or not cache.get("offers"):
        without = "This record holds no trade-off: penstock bench --cache-tradeoff DATA measures it, of files."
        return Section(title=title, texts=[without])
    offers, settings, data = cache["offers"], cache["settings"], cache["data"]
    files = offers[0]["images_per_s"]
    rows = [
        (
            each["name"],
            f"{each['bytes_an_image']:,.0f}",
            size_text(round(each["whole_bytes"])),
            rate_text(each["images_per_s"]),
            spread_text(each["rounds"]),
            times_text(each["images_per_s"], files),
            quality_text(each),
        )
        for each in offers
    ]
    columns = [("stored as", "text"), ("bytes an image", "number"), ("whole data", "number"), ("images/s", "number")]
    columns += [("lowest to highest round", "number"), ("times the files", "number"), ("pixels", "number")]
    table = Table(
        caption="Names are options of penstock cache build; dB: PSNR of what is served against the source.",
        columns=columns,
        rows=rows,
    )
    about = (
        f"Each way of storing, of a sample of {data['sample']:,} images, loaded by {cache['workers']} workers as uint8 "
        f"batches of {settings['batch_size']:,}; {settings['rounds']} alternating rounds of {settings['seconds']:g} s."
    )
    said = "; ".join(f"{name}: {size} bytes an image, {rate} images/s, {px}" for name, size, _, rate, _, _, px in rows)
    label = f"Scatter plot, images/s over kB an image on the disk. {said}."
    caption = "Further up is faster, further left is smaller; the thin line is the lowest to the highest round."
    figure = drawn(tradeoff_plot(offers, "tradeoff"), label, caption)
    return Section(title=title, texts=[about], figures=[figure], tables=[table], notes=cache.get("notes") or ())


def machine_section(record: BenchRecord) -> Section:
    """The machine, the versions, the data and the loader."""
    about = {name: value for name, value in record.environment.items() if name != "packages"}
    names = {"cpu": "processor", "cpus": "processors", "memory_gb": "memory, GB", "gpu": "GPU"}
    packages = record.environment.get("packages")
    return Section(
        title="Machine, versions, data",
        facts=[
            ("Machine", _facts(about, names)),
            ("Versions", _facts(packages if isinstance(packages, Mapping) else {}, {})),
            ("Data", _facts(record.data, {"bytes_an_image": "bytes an image"})),
            ("Loader", _facts(record.loader, {})),
        ],
    )


def _facts(about: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(names.get(name, name.replace("_", " ")), _fact(value)) for name, value in about.items()]


def _fact(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)


def repeat_section(document: Mapping[str, Any], record: BenchRecord) -> Section:
    """The command line that measures this again, and the call to paste."""
    code = [{"caption": "To measure this again:", "text": repeat_command(record.settings)}]
    call = (document.get("verdict") or {}).get("call")
    if call:
        code.append({"caption": "The loader that was measured, to paste:", "text": call.rstrip()})
    texts = ["DATA stands for the folder or cache that was measured: a record holds no paths."]
    if not call:
        texts.append("The call to paste is not in this record; penstock bench prints it.")
    return Section(title="How to repeat it", texts=texts, code=code)
