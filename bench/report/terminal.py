"""A benchmark record as tables and lines for the terminal."""

from __future__ import annotations

import statistics

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from penstock.bench.record.advice import BOTH
from penstock.bench.record.backend_options import non_default_options
from penstock.bench.record.bench_record import (
    KIND_NAMES,
    BenchRecord,
    Measured,
    Tried,
    TriedAdvice,
    decode_ceilings,
    decode_name,
)
from penstock.bench.report.console import plain_console
from penstock.bench.report.text import (
    hindrance_text,
    ledger_texts,
    rate_text,
    resource_texts,
    rounds_text,
    spread_text,
)
from penstock.bench.verdict.figures import Figures

_FASTER = 1.05  # a smaller lead is noise
_MAX_CANDIDATES = 4  # of a backend, that are listed


def print_record(record: BenchRecord) -> None:
    """Print a record that was judged to standard output; plain text where that is no terminal."""
    plain_console().print(render(record), soft_wrap=False)


def render(record: BenchRecord) -> Group:
    """Return the table, what was searched, the ratios, the verdict and the call to paste."""
    parts: list[RenderableType] = [_table(record), Text()]
    parts += [
        Text(line) for line in (*_search_lines(record), *record.notes, *ledger_texts(record.ledger), *_ratios(record))
    ]
    if record.verdict:
        parts += [Text(record.verdict.sentence, style="bold"), *map(Text, _advice(record))]
    parts += tried_advice(record)
    hindered = hindrance_text(record)
    parts += [*[Text(hindered, style="bold")] * bool(hindered), Text(_recommendation(record)), Text()]
    if record.verdict:
        parts.append(Syntax(record.verdict.call, "python", background_color="default", word_wrap=True))
    return Group(*parts)


def _table(record: BenchRecord) -> Table:
    environment, settings = record.environment, record.settings
    gpu = f", {environment['gpu']}" if environment["gpu"] else ""
    run = f"{record.workers} workers, batches of {settings.batch_size}, {settings.dtype}"
    table = Table(
        title=f"{record.data['summary']}\n{environment['cpus']} x {environment['cpu']}{gpu}; {run}",
        title_justify="left",
        title_style="",
        caption=f"medians of {rounds_text(record)} s; spread: lowest to highest round",
        caption_justify="left",
    )
    for column in ("what", "measured"):
        table.add_column(column)
    took = any(measured.resources for measured in record.measured)
    for column in ("images/s", "spread", *["took"] * took):
        table.add_column(column, justify="right")
    order = list(KIND_NAMES)
    for each in sorted(record.measured, key=lambda m: order.index(m.kind)):
        cells = (KIND_NAMES[each.kind], _name(each), f"{each.images_per_s:,.0f}", spread_text((each.low, each.high)))
        table.add_row(*cells, *["\n".join(resource_texts(each.resources, narrow=True))] * took)
    ceiling = Figures.of(record).decode_ceiling
    if ceiling:
        table.add_row("ceiling", f"decode + resize, {record.decoder}, all workers", f"{ceiling:,.0f}", "computed")
    return table


def _name(measured: Measured) -> str:
    waits = measured.wait_share
    return measured.label if waits is None else f"{measured.label} ({waits:.0%} of the step waiting for data)"


def _search_lines(record: BenchRecord) -> list[str]:
    """Return a line for each backend on what the search tried."""
    by_backend: dict[str, list[Tried]] = {}
    for tried in record.candidates:
        by_backend.setdefault(tried.backend, []).append(tried)
    return [_search_line(tried) for tried in by_backend.values()]


def _search_line(tried: list[Tried]) -> str:
    start = tried[0]
    measured = sorted((t for t in tried if t.images_per_s is not None), key=lambda t: -(t.images_per_s or 0.0))
    rates = [f"{_difference(start, t)}: {t.images_per_s:,.0f}" for t in measured[:_MAX_CANDIDATES]]
    if len(measured) > _MAX_CANDIDATES:
        rates.append(f"{len(measured) - _MAX_CANDIDATES} slower")
    text = f"Tried {start.name}, images/s by short measurements: {', '.join(rates) or 'none'}"
    return "; ".join([text, *(f"{_difference(start, t)}: {t.why}" for t in tried if t.why)]) + "."


def _difference(start: Tried, tried: Tried) -> str:
    """Name what sets a candidate apart from the one that the search of its backend began with."""
    decoder = [] if tried.decoder == start.decoder else [tried.decoder]
    options = [f"{name} {value}" for name, value in tried.options.items() if start.options.get(name) != value]
    return ", ".join([*decoder, *options]) or "as it is"


def _ratios(record: BenchRecord) -> list[str]:
    ratios = [(other, record.ratios_to(other)) for other in record.all_of("baseline")]
    return [
        f"Penstock delivers {statistics.median(of):.2f} times the images/s of {_name(other)}, {min(of):.2f} to "
        f"{max(of):.2f} in {len(of)} paired rounds."
        for other, of in ratios
        if of
    ]


def _advice(record: BenchRecord) -> list[str]:
    lines = []
    for advice in (record.verdict and record.verdict.advice) or ():
        gain, times = "", record.gain(advice)
        if times is not None:
            whose = " of loader + model" * (advice.quantity == BOTH)
            gain = f": predicted {advice.images_per_s:,.0f} images/s{whose}, {times:.2f} times this run's"
        lines.append(f"To change: {advice.what}{gain} ({advice.why}).")
    return lines


def tried_advice(record: BenchRecord) -> list[RenderableType]:
    """Return a table of the advice that was taken, and a line for each that did not hold; nothing if none was taken."""
    if not record.applied:
        return []
    table = Table(title="advice tried, each alternating with the run as it was", title_justify="left")
    table.add_column("advice")
    table.add_column("of")
    for name in ("before", "predicted", "measured", "predicted gain", "measured gain"):
        table.add_column(name, justify="right")
    lines = []
    for tried in record.applied:
        table.add_row(*_cells(tried))
        if tried.failed:
            lines.append(f"{tried.what} could not be tried: {tried.failed}")
        elif tried.gain is not None and tried.gain < 1:
            lines.append(f"{tried.what} did not hold here: {tried.gain:.2f} times the images/s before.")
    return [Text(), table, *map(Text, lines), Text()]


def _cells(tried: TriedAdvice) -> tuple[str, ...]:
    quantity = KIND_NAMES[tried.quantity] + f", {tried.note}" * bool(tried.note)
    if tried.gain is None:
        return (tried.what, quantity, *["-"] * 5)
    predicted = "-" if tried.predicted is None else f"{tried.predicted:,.0f}"
    gain = "-" if tried.predicted is None else f"{tried.predicted / tried.before:.2f}"
    return (
        tried.what,
        quantity,
        f"{tried.before:,.0f}",
        predicted,
        f"{tried.measured:,.0f}",
        gain,
        f"{tried.gain:.2f}",
    )


def _recommendation(record: BenchRecord) -> str:
    choice = record.choice
    why = f" ({record.loader.get('decoder_reason', '')})" if not record.candidates else ""
    options = non_default_options(choice.backend, choice.options)
    named = "".join(f", {name} {value}" for name, value in options.items())
    text = (
        f"Recommended: backend {choice.backend!r}, {choice.options.get('workers')} workers{named}, decoder "
        f"{choice.decoder!r}{why}: {rate_text(choice.images_per_s or 0)} images/s measured."
    )
    if choice.backend == "dali" or record.candidates:  # DALI decodes by itself; the search has compared the decoders
        return text
    mine, others = record.rate("ceiling", decode_name(record.decoder)), decode_ceilings(record)
    best = max(others, key=lambda name: others[name], default=None)
    if best is not None and mine and others[best] > _FASTER * mine:
        text += f" Another decoder was {others[best] / mine:.2f} times as fast alone ({best}): try it with --decoder."
    return text
