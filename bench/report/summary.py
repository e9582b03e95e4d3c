"""A benchmark record on one screen: the verdict, the rates that matter, what makes it faster, the call to paste."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from penstock.bench.record.advice import Advice
from penstock.bench.record.bench_record import KIND_NAMES, BenchRecord, Measured
from penstock.bench.report.console import plain_console
from penstock.bench.report.text import hindrance_text, ledger_texts, rate_text, ratio_text, shown, spread_text
from penstock.bench.verdict.figures import Figures

_KINDS = ("loader", "both", "model", "other", "baseline")  # rows, in this order
_MAX_ROWS, _MAX_ADVICE = 5, 3


def print_summary(record: BenchRecord) -> None:
    """Print a screenful of a record that was judged to standard output."""
    plain_console().print(summary(record), soft_wrap=False)


def summary(record: BenchRecord, *, whole: bool = False) -> Group:
    """Return the verdict in a sentence, the main rates, the advice, and the call to paste.

    whole: all that the record holds stands above, the call too.
    """
    parts: list[RenderableType] = []
    if record.verdict:
        parts.append(Text(str(shown(record.verdict.sentence)), style="bold"))
    parts.append(_rates(record))
    faster, sparing = split_advice(record)
    for heading, advice in (("Faster:", faster), ("Saves processors:", sparing)):
        parts += [Text(f"{heading} {_line(each, record)}") for each in advice]
    hindered = hindrance_text(record)
    parts += [Text(hindered, style="bold")] * bool(hindered)
    parts += [Text(str(shown(line))) for line in ledger_texts(record.ledger)]
    late = [note for note in record.notes if note.startswith("not ")]  # lists of names, which --verbose prints whole
    parts += [Text(str(shown(note)), overflow="ellipsis", no_wrap=True) for note in late]
    if record.verdict and not whole:
        parts.append(Syntax(record.verdict.call, "python", background_color="default", word_wrap=True))
    if not whole:
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
        text += f": {rate_text(advice.images_per_s)} images/s predicted, {gain:.2f} x"
    if tried is not None:
        text += f"; tried: {tried.gain:.2f}"
    return str(shown(text))


def _rates(record: BenchRecord) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(overflow="fold")
    for name in ("images/s", "spread"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("loader is" if record.all_of("other") or record.all_of("baseline") else "")
    loader = record.rate("loader")
    rows = [each for kind in _KINDS for each in record.all_of(kind)][:_MAX_ROWS]
    for each in rows:
        table.add_row(_label(each), *_figures(each, record))
    ceiling = Figures(record).decode_ceiling
    if ceiling and loader:
        share = f"{loader / ceiling:.0%} reached"
        table.add_row(f"ceiling: decode + resize, {record.decoder}", rate_text(ceiling), "", share)
    return table


def _label(measured: Measured) -> str:
    return str(shown(f"{KIND_NAMES[measured.kind]}: {measured.label}"))


def _figures(measured: Measured, record: BenchRecord) -> tuple[str, str, str]:
    spread = spread_text((measured.low, measured.high)) if len(measured.rounds) > 1 else ""
    ratios = record.ratios_to(measured) if measured.kind in ("other", "baseline") else []
    return rate_text(measured.images_per_s), spread, ratio_text(ratios) if ratios else ""
