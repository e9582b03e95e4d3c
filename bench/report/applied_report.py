"""What became of the advice, as a table for people: predicted beside measured."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from penstock.bench.record.record import Applied, BenchRecord
from penstock.bench.verdict.advice import BOTH

_HINDERING = 0.25  # of the processors


def applied_parts(record: BenchRecord) -> list[RenderableType]:
    """The table, and a line for each piece of advice that did not hold; nothing where none was taken."""
    if not record.applied:
        return []
    table = Table(title="advice taken, each measured in turn with the run as it was", title_justify="left")
    table.add_column("advice")
    table.add_column("of")
    for name in ("before", "predicted", "measured", "predicted gain", "measured gain"):
        table.add_column(name, justify="right")
    for applied in record.applied:
        table.add_row(*_cells(applied))
    lines = [line for applied in record.applied for line in _remarks(applied)] + _hindered(record)
    return [Text(), table, *map(Text, lines), Text()]


def _hindered(record: BenchRecord) -> list[str]:
    loader = record.find("loader")
    share = loader.resources.others_share if loader and loader.resources else None
    if share is None or share < _HINDERING:
        return []
    return [
        f"Other programs kept {share:.0%} of the processors busy: predictions are for a machine that is free, and what "
        "was measured is not from one."
    ]


def _cells(applied: Applied) -> tuple[str, ...]:
    of = ("loader + model" if applied.quantity == BOTH else "loader") + f", {applied.note}" * bool(applied.note)
    if applied.gain is None:
        return (applied.what, of, *["-"] * 5)
    predicted = "-" if applied.predicted is None else f"{applied.predicted:,.0f}"
    promised = "-" if applied.predicted is None else f"{applied.predicted / applied.before:.2f}"
    rates = (f"{applied.before:,.0f}", predicted, f"{applied.measured:,.0f}")
    return (applied.what, of, *rates, promised, f"{applied.gain:.2f}")


def _remarks(applied: Applied) -> list[str]:
    if applied.failed:
        return [f"{applied.what} could not be tried: {applied.failed}"]
    if applied.gain is not None and applied.gain < 1:
        return [f"{applied.what} did not hold here: {applied.gain:.2f} times the images/s before."]
    return []
