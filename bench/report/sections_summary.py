"""The section at the end of a run, one screen long: verdict, main rates, what makes it faster, the call to paste."""

from __future__ import annotations

import textwrap

from penstock.bench.record.advice import Advice
from penstock.bench.record.bench_record import KIND_NAMES, BenchRecord, Measured
from penstock.bench.report.section_types import Section, Table
from penstock.bench.report.text import hindrance_text, ledger_texts, rate_text, ratio_text, spread_text
from penstock.bench.verdict.figures import Figures

_KINDS = ("loader", "both", "model", "other", "baseline")  # rows, in this order
_MAX_ROWS, _MAX_ADVICE = 5, 3
_LINE = 78  # maximum characters of a note that lists names; --verbose prints it whole


def summary_section(record: BenchRecord, *, whole: bool = False) -> Section:
    """Return the summary of a record.

    whole: the whole record is printed above, including the call.
    """
    faster, sparing = split_advice(record)
    notes = [f"Faster: {_advice_text(each, record)}" for each in faster]
    notes += [f"Saves processors: {_advice_text(each, record)}" for each in sparing]
    notes += [*filter(None, [hindrance_text(record)]), *ledger_texts(record.ledger)]
    notes += [textwrap.shorten(note, _LINE, placeholder=" ...") for note in record.notes if note.startswith("not ")]
    call = record.verdict.call if record.verdict else ""
    return Section(
        title=record.verdict.sentence if record.verdict else "",
        tables=[_rates_table(record)],
        notes=notes if whole else [*notes, "All figures: --verbose, or --report FILE.html"],
        code=[{"caption": "", "text": call}] if call and not whole else [],
    )


def split_advice(record: BenchRecord) -> tuple[list[Advice], list[Advice]]:
    """Return the advice that makes a run faster, largest gain first, and the advice that saves processors."""
    advice = (record.verdict and record.verdict.advice) or ()
    slower = [each for each in advice if (gain := record.gain(each)) is not None and gain <= 1]
    return [each for each in advice if each not in slower][:_MAX_ADVICE], slower[:1]


def _advice_text(advice: Advice, record: BenchRecord) -> str:
    gain = record.gain(advice)
    tried = next((each for each in record.applied if each.what == advice.what and each.gain is not None), None)
    text = advice.what
    if gain is not None:
        text += f": {rate_text(advice.images_per_s)} images/s predicted, {gain:.2f} x"
    if tried is not None:
        text += f"; tried: {tried.gain:.2f}"
    return text


def _rates_table(record: BenchRecord) -> Table:
    rows = [_rate_row(each, record) for kind in _KINDS for each in record.all_of(kind)][:_MAX_ROWS]
    ceiling, loader = Figures(record).decode_ceiling, record.rate("loader")
    if ceiling and loader:
        share = f"{loader / ceiling:.0%} reached"
        rows.append((f"ceiling: decode + resize, {record.decoder}", rate_text(ceiling), "", share))
    compared = "loader is" if record.all_of("other") or record.all_of("baseline") else ""
    columns = [("", "short"), ("images/s", "number"), ("spread", "number"), (compared, "number")]
    return Table(caption="", columns=columns, rows=rows)


def _rate_row(measured: Measured, record: BenchRecord) -> tuple[str, ...]:
    spread = spread_text((measured.low, measured.high)) if len(measured.rounds) > 1 else ""
    ratios = record.ratios_to(measured) if measured.kind in ("other", "baseline") else []
    times = ratio_text(ratios) if ratios else ""
    return f"{KIND_NAMES[measured.kind]}: {measured.label}", rate_text(measured.images_per_s), spread, times
