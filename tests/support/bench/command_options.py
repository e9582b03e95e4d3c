"""The options of a command, as its help lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def option_names(command: Callable[..., Any]) -> set[str]:
    """Such as "--epochs", of a function that typer makes a command of."""
    app = typer.Typer()
    app.command()(command)
    return {option for parameter in typer.main.get_command(app).params for option in parameter.opts}
