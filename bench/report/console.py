"""A console for tables of measurements, whose names come from records and paths."""

from __future__ import annotations

import textwrap
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from penstock.bench.report.section_types import Table
from penstock.bench.report.text import shown


def plain_console(**options: Any) -> Console:
    """Return a console of rich that prints text as it is: `[red]` in a name is no markup, `:smile:` no emoji."""
    return Console(markup=False, emoji=False, highlight=False, **options)


def plain_text(value: Any, style: str = "") -> Text:
    """Return text as it can be shown."""
    return Text(str(shown(value)), style=style)


def print_table(table: Table, console: Console) -> None:
    """Print a table between its caption and its long texts, each of which has a line: a column would be a word wide.

    Figures are never broken or cut; names are broken where the screen is narrow, and those of columns above figures.
    """
    columns = [number for number, (_, kind) in enumerate(table.columns) if not number or kind != "text"]
    drawn = TextTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number in columns:
        name, kind = table.columns[number]
        if kind == "number":
            width = max((len(row[number]) for row in table.rows), default=0) or len(name)
            head = textwrap.fill(name, width, break_long_words=False)
            drawn.add_column(head, justify="right", no_wrap=True)
        else:
            drawn.add_column(name, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(plain_text(row[number]) for number in columns))
    if console.measure(drawn, options=console.options.update(max_width=1_000)).maximum > console.width:
        drawn.padding = (0, 0, 0, 0)  # before a name is broken
    if table.caption:
        console.print(plain_text(table.caption, "dim"))
    console.print(drawn)
    for row in table.rows:
        for cell in (row[number] for number in range(len(row)) if number not in columns):
            if cell:
                console.print(plain_text(f"{row[0]}: {cell}"))
