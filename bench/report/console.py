"""A console for tables of measurements, whose names come from records and paths."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """Return a console of rich that prints text as it is: `[red]` in a name is no markup, `:smile:` no emoji."""
    return Console(markup=False, emoji=False, highlight=False, **options)
