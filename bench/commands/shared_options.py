"""Adds the options of settings classes to commands, and defines options that several commands share."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer
from typer.core import TyperCommand

from penstock.bench.record.settings import Backend, Decoder, MaxBad, Workers, option_fields, setting

_PANELS = {"techniques": "Techniques", "data_options": "Data", "fields": "Fields", "checkpoints": "Checkpoints"}


class NamingCommand(TyperCommand):
    """A command that translates an option of another tool, instead of suggesting options with a similar name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, as click does."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            self._suggest(error)
            raise

    def _suggest(self, error: Any) -> None:
        if not hasattr(error, "possibilities"):  # NoSuchOption, from click or from typer's copy of it
            return
        from penstock.pipelines.messages.foreign_names import name_here

        options = {parameter.name: parameter.opts[0] for parameter in self.params if parameter.name}
        ours = name_here(error.option_name.lstrip("-").replace("-", "_"), options)
        if ours in options:
            error.possibilities = [options[ours]]


def writable(path: Path | None) -> Path | None:
    """Reject a file that cannot be written before the work begins, on the rank that will write it."""
    return _writable(path, private=False)


def savable(path: Path | None) -> Path | None:
    """Reject a checkpoint that cannot be saved, as `writable` rejects a file."""
    return _writable(path, private=True)


def _writable(path: Path | None, *, private: bool) -> Path | None:
    if path is not None and os.environ.get("RANK", "") in ("", "0"):
        from penstock.loaders.system.durable_file import ensure_writable

        ensure_writable(path, private=private)
    return path


def data_path(text: str) -> str:
    """Return a path or URL unchanged. Raises ValueError if it is empty, which would mean the current folder."""
    if not text:
        raise ValueError("the path is empty: check the variable that it comes from")
    return text


DATA_HELP = "Folder of images, cache, table, tars, Arrow or Parquet files; URLs of tars; a glob pattern of these."
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, parser=data_path)]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the record here.", callback=writable)]
Page = Annotated[
    Path | None, typer.Option(dir_okay=False, callback=writable, help="Write an HTML page with tables and plots here.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """Options that choose backend and workers, named as arguments of create_loader."""

    backend: Backend = "torch"
    decoder: Decoder = "auto"
    workers: Workers = None


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Options for bad samples, named as arguments of create_loader."""

    on_bad_sample: str = setting("raise", "raise or replace.")
    on_repaired: str | None = setting(
        None,
        "JPEGs that libjpeg repaired: count, raise, replace, ignore.",
        show_default="count, if the decoder reports them",
    )
    max_bad: MaxBad = None


def resolve_device(name: str) -> str:
    """Return `name`, with "auto" resolved. Raises ValueError for cuda without a CUDA device."""
    import torch

    from penstock.loaders.run.feed.copies import checked_device

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this torch sees no CUDA device (torch {torch.__version__})")
    checked_device(name)
    return name


def takes_settings(**groups: type[Any] | tuple[type[Any], ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of settings classes to a command; it receives their values as a dict named after the keyword.

    A field that is also a parameter of the command is left out. If a class defines `read(values)`, the command receives
    its result instead.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        options = {
            name: [
                option
                for each in (group if isinstance(group, tuple) else (group,))
                for option in _options_of(each, _PANELS.get(name))
                if option.name not in own
            ]
            for name, group in groups.items()
        }
        parameters = [p for name, p in own.items() if name not in groups] + list(chain(*options.values()))

        def with_options(*arguments: Any, **named: Any) -> None:
            for name, found in options.items():
                values = {option.name: named.pop(option.name, option.default) for option in found}
                named[name] = getattr(groups[name], "read", dict)(values)
            command(*arguments, **named)

        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        )
        return with_options

    return decorate


def _options_of(group: type[Any], panel: str | None) -> Iterator[inspect.Parameter]:
    for field, kind, option in option_fields(group):
        if option is None:
            continue
        asked = field.metadata.get("asked", field.default)
        accepted: Any = str if get_origin(kind) is Literal else kind  # the settings list the choices if one is invalid
        accepted = accepted | None if asked is None else accepted
        option = copy.copy(option)
        option.rich_help_panel = panel
        annotation = Annotated[accepted, option]
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=asked, annotation=annotation)
