"""The parts of a report page: sections with paragraphs, charts, tables and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.bench.report.charts import BarChart, LineChart


@dataclass(frozen=True, kw_only=True)
class Table:
    """Hold a table; `columns` are names with "number", "text" or "short", and a row's first cell is its heading."""

    caption: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Hold a chart and its caption."""

    chart: BarChart | LineChart
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """Hold a section of the page.

    Attributes:
        texts: paragraphs.
        facts: headings, each with names and values.
        code: captions, each with a text to copy.
        notes: items of a list.
        missing: why the record has no data for this section, which is then one line of the page's last section.
    """

    title: str
    texts: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    code: Sequence[Mapping[str, str]] = ()
    notes: Sequence[str] = ()
    missing: str = ""
