"""The options of a command in its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def option_names(command: Callable[..., Any]) -> set[str]:
    """The options, such as "--epochs", of a function that becomes a typer command."""
    app = typer.Typer()
    app.command()(command)
    return {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
