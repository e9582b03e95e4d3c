"""What a report page is made of: sections with texts, a plot, tables and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.bench.record.record import Measured
from penstock.bench.report.bar_chart import Bar, BarChart

KIND_NAMES = {
    "loader": "loader",
    "both": "loader + model",
    "other": "other loader",
    "baseline": "baseline",
    "model": "model",
    "ceiling": "ceiling",
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """columns: name and "number" or "text" or "short"; rows: the first cell is the row's heading."""

    caption: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A plot as <svg> for wide and narrow pages; label: all that it shows, in words."""

    wide: Any
    narrow: Any
    label: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """texts: paragraphs; facts: headings with names and values; code: captions with texts to copy; notes: a list."""

    title: str
    texts: Sequence[str] = ()
    figures: Sequence[Drawn] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    code: Sequence[Mapping[str, str]] = ()
    notes: Sequence[str] = ()


def measured_name(measured: Measured) -> str:
    """What was measured, and how."""
    return f"{measured.name}, {measured.note}" if measured.note else measured.name


def drawn(svgs: tuple[str, str], label: str, caption: str) -> Drawn:
    """The plot, marked as HTML that needs no escaping."""
    from markupsafe import Markup

    return Drawn(wide=Markup(svgs[0]), narrow=Markup(svgs[1]), label=label, caption=caption)


def charted(chart: BarChart, name: str, caption: str) -> Drawn:
    """The chart drawn, with its figures as its label."""
    said = [f"{row.label}: {row.value}" if isinstance(row, Bar) else row for row in chart.rows]
    return drawn(chart.drawn(name), f"Bar chart, {chart.axis}. {'; '.join(said)}.", caption)


def times_text(rate: float | None, now: float | None) -> str:
    """How many times `now` it is, or nothing."""
    return f"{rate / now:.2f} ×" if rate is not None and now else ""
