"""Settings of a training run as options of a command: one for each field of the groups."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer

from penstock.bench.step.technique_settings import SETTING_GROUPS


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of all groups of settings; it receives their values as a dict, `techniques`."""
    options = [option for group in SETTING_GROUPS for option in _options(group)]
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [*(p for p in own if p.name != "techniques"), *options]

    def with_options(**arguments: Any) -> None:
        techniques = {option.name: arguments.pop(option.name) for option in options}
        command(**arguments, techniques=techniques)

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return with_options


def _options(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group)
    found = []
    for field in fields(group):
        kind: Any = hints[field.name]
        if get_origin(kind) is Literal:
            kind = str  # the settings name the choices when they refuse one
        annotation = Annotated[kind, typer.Option(help=field.metadata["help"], rich_help_panel="Techniques")]
        found.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)
        )
    return found
