"""A benchmark record on one screen: the verdict, the rates that matter, what makes it faster, the call to paste."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from penstock.bench.record.advice import Advice
from penstock.bench.record.bench_record import KIND_NAMES, BenchRecord, Measured
from penstock.bench.report.console import plain_console
from penstock.bench.report.text import ledger_texts, rate_text, shown, spread_text
from penstock.bench.verdict.figures import Figures

_KINDS = ("loader", "both", "model", "other", "baseline")  # rows, in this order
_MAX_ROWS, _MAX_ADVICE = 5, 3
_LABEL_WIDTH, _FIGURE_WIDTHS = 32, (15, 15, 14)  # of 80 columns


def print_summary(record: BenchRecord) -> None:
    """Print a screenful of a record that was judged to standard output."""
    plain_console().print(summary(record), soft_wrap=False)


def summary(record: BenchRecord) -> Group:
    """Return the verdict in a sentence, the main rates, the advice, and the call to paste."""
    parts: list[RenderableType] = []
    if record.verdict:
        parts.append(Text(str(shown(record.verdict.sentence)), style="bold"))
    parts.append(_rates(record))
    faster, sparing = split_advice(record)
    for heading, advice in (("Faster:", faster), ("Saves processors:", sparing)):
        parts += [Text(f"{heading} {_line(each, record)}", overflow="ellipsis", no_wrap=True) for each in advice]
    late = [note for note in record.notes if note.startswith("not ")]
    lines = [*ledger_texts(record.ledger), *late]
    parts += [Text(str(shown(line)), overflow="ellipsis", no_wrap=True) for line in lines]
    if record.verdict:
        parts.append(Syntax(record.verdict.call, "python", background_color="default", word_wrap=True))
    parts.append(Text("All figures: --verbose, or --report FILE.html", style="dim"))
    return Group(*parts)


def split_advice(record: BenchRecord) -> tuple[list[Advice], list[Advice]]:
    """Return the advice that makes a run faster, the greatest gain first, and the advice that spares processors."""
    advice = (record.verdict and record.verdict.advice) or ()
    slower = [each for each in advice if (gain := record.gain(each)) is not None and gain <= 1]
    return [each for each in advice if each not in slower][:_MAX_ADVICE], slower[:1]


def _line(advice: Advice, record: BenchRecord) -> str:
    gain = record.gain(advice)
    tried = next((each for each in record.applied if each.what == advice.what and each.gain is not None), None)
    text = advice.what
    if gain is not None:
        text += f": predicted {rate_text(advice.images_per_s)} images/s, {gain:.2f} times this"
    if tried is not None:
        text += f"; tried: {tried.gain:.2f}"
    return str(shown(text))


def _rates(record: BenchRecord) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=_LABEL_WIDTH)
    for width in _FIGURE_WIDTHS:
        table.add_column(justify="right", no_wrap=True, min_width=width)
    loader = record.rate("loader")
    rows = [each for kind in _KINDS for each in record.all_of(kind)][:_MAX_ROWS]
    for each in rows:
        table.add_row(_label(each), *_figures(each, loader))
    ceiling = Figures.of(record).decode_ceiling
    if ceiling and loader:
        share = f"{loader / ceiling:.0%} reached"
        table.add_row(f"ceiling: decode + resize, {record.decoder}", f"{rate_text(ceiling)} images/s", "", share)
    return table


def _label(measured: Measured) -> str:
    return str(shown(f"{KIND_NAMES[measured.kind]}: {measured.label}"))


def _figures(measured: Measured, loader: float | None) -> tuple[str, str, str]:
    spread = spread_text((measured.low, measured.high)) if len(measured.rounds) > 1 else ""
    times = ""
    if loader and measured.images_per_s and measured.kind in ("other", "baseline"):
        times = f"loader {loader / measured.images_per_s:.2f}x"
    return f"{rate_text(measured.images_per_s)} images/s", spread, times
