"""Prints sections of the page and of commands as text on the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from penstock.bench.report.section_types import Section, Table
from penstock.bench.report.text import shown

_LEAST_WIDTH = 20


def plain_console(**options: Any) -> Console:
    """Return a rich console that prints text unchanged: `[red]` is not markup, `:smile:` is not an emoji."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def print_sections(sections: Iterable[Section], console: Console | None = None) -> None:
    """Print sections, to standard output by default; lines are broken between words, and only on a terminal.

    A chart is printed as text if its section does not have a table.
    """
    console = console or plain_console()
    for number, section in enumerate(sections):
        if number:
            console.print()
        charts = [figure.chart.text for figure in section.figures if not section.tables]
        _print_lines(console, [section.title] if section.title else [], "bold")
        _print_lines(console, (*section.texts, *charts))
        for table in section.tables:
            _print_table(table, console)
        _print_lines(
            console,
            (f"{heading}: {', '.join(f'{name} {value}' for name, value in pairs)}" for heading, pairs in section.facts),
        )
        _print_lines(console, section.notes)
        for code in section.code:
            console.print(_plain_text("\n".join(filter(None, code.values()))), soft_wrap=True)


def _print_lines(console: Console, lines: Iterable[Any], style: str = "") -> None:
    for line in lines:
        console.print(_plain_text(line, style), soft_wrap=not console.is_terminal)


def _plain_text(value: Any, style: str = "") -> Text:
    return Text(str(shown(value)), style=style)


def _print_table(table: Table, console: Console) -> None:
    """Print a table between its caption and its long texts, one line each: as a column they would be one word wide.

    Figures are never broken or cut; names are broken on a narrow screen, as are column names above figures.
    """
    columns = [number for number, (_, kind) in enumerate(table.columns) if not number or kind != "text"]
    drawn = TextTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number in columns:
        name, kind = table.columns[number]
        if kind == "number":
            width = max((len(row[number]) for row in table.rows), default=0) or len(name)
            head = textwrap.fill(name, width, break_long_words=False)
            drawn.add_column(head, justify="right", no_wrap=True)
        else:
            drawn.add_column(name, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(_plain_text(row[number]) for number in columns))
    if console.measure(drawn, options=console.options.update(max_width=1_000)).maximum > console.width:
        drawn.padding = (0, 1, 0, 0)  # before a name is broken
    _print_lines(console, [table.caption] if table.caption else [], "dim")
    console.print(drawn)
    texts = [number for number in range(len(table.columns)) if number not in columns]
    _print_lines(console, (f"{row[0]}: {row[number]}" for row in table.rows for number in texts if row[number]))


def wrap_for_terminal(text: str, indent: int) -> str:
    """Return text broken between words with continuation lines indented by `indent`; unchanged without a terminal.

    The first line may begin up to three columns right of `indent`.
    """
    if not sys.stdout.isatty():
        return text
    width = max(_LEAST_WIDTH, shutil.get_terminal_size().columns - indent - 3)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    return f"\n{'':{indent}}".join(lines)
