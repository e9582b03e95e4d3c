"""Defines the command-line options that several commands share, and one option for each training technique."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from penstock.bench.train.step.technique_settings import TECHNIQUE_GROUPS


class NamingCommand(TyperCommand):
    """Suggest the option that one of another tool means, instead of those that look like it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, as click does."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            self._suggest(error)
            raise

    def _suggest(self, error: Any) -> None:
        if not hasattr(error, "possibilities"):  # NoSuchOption, of click or of typer's copy of it
            return
        from penstock.pipelines.messages.foreign_names import name_here

        options = {parameter.name: parameter.opts[0] for parameter in self.params if parameter.name}
        ours = name_here(error.option_name.lstrip("-").replace("-", "_"), options)
        if ours in options:
            error.possibilities = [options[ours]]


def writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before the work begins, on the rank that will write it."""
    return _writable(path, private=False)


def savable(path: Path | None) -> Path | None:
    """Refuse a checkpoint that cannot be saved, as `writable` refuses a file."""
    return _writable(path, private=True)


def _writable(path: Path | None, *, private: bool) -> Path | None:
    if path is not None and os.environ.get("RANK", "") in ("", "0"):
        from penstock.loaders.system.durable_file import ensure_writable

        ensure_writable(path, private=private)
    return path


def data_path(text: str) -> str:
    """Return a path or URL of data as it was given. Raises ValueError for none, which would be the current folder."""
    if not text:
        raise ValueError("the path is empty: check the variable that it comes from")
    return text


DATA_HELP = "Folder of images, cache, table, tars, Arrow or Parquet files; URLs of tars; a pattern of these."
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP, parser=data_path)]
Backend = Annotated[str, typer.Option(help="torch, hdf5 or dali; auto uses the saved profile.")]
Decoder = Annotated[str, typer.Option(help="JPEG decoder: auto, native, simplejpeg, turbojpeg or pillow.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images per batch, on each rank.")]
Size = Annotated[int, typer.Option(min=1, help="Height and width of the images handed out, in pixels.")]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Worker threads or processes; one per processor by default, 0 works in the main thread."),
]
Prefetch = Annotated[int | None, typer.Option(min=1, help="Batches ahead for each worker.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="HDF5 cache of DATA, for backends hdf5 and dali; built if it does not exist."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of order, crops and flips.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto uses cuda if there is a GPU.")]
Model = Annotated[str, typer.Option(help="resnet18, resnet50, or a timm name.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Length of each measurement in each round.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; each makes every measurement once.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the record here.", callback=writable)]
Page = Annotated[
    Path | None, typer.Option(dir_okay=False, callback=writable, help="Write a page of tables and plots here (HTML).")
]
OnRepaired = Annotated[
    str | None,
    typer.Option(
        help="What to do with JPEGs that libjpeg repaired: count, raise, replace, ignore.",
        show_default="count, if the decoder reports them",
    ),
]
MaxBad = Annotated[float | None, typer.Option(min=0, help="Most bad samples to replace per epoch; below 1 a share.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def resolve_device(name: str) -> str:
    """Return `name`, with "auto" resolved. Raises ValueError for cuda where there is none."""
    import torch

    from penstock.loaders.run.feed.copies import checked_device

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this torch sees no CUDA device (torch {torch.__version__})")
    checked_device(name)
    return name


def takes_techniques(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each training technique; it receives their values as a dict, `techniques`."""
    options = [option for group in TECHNIQUE_GROUPS for option in _options_of(group)]
    return with_more_options(command, "techniques", options)


def with_more_options(
    command: Callable[..., None],
    name: str,
    options: Sequence[inspect.Parameter],
    read: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[..., None]:
    """Return a command with more options; it receives what `read` makes of their values as the argument `name`."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [*(p for p in own if p.name != name), *options]

    def with_options(*arguments: Any, **named: Any) -> None:
        values = {option.name: named.pop(option.name, option.default) for option in options}
        command(*arguments, **named, **{name: read(values)})

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return with_options


def _options_of(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group)
    found = []
    for field in fields(group):
        kind: Any = hints[field.name]
        if get_origin(kind) is Literal:
            kind = str  # TrainSettings names the choices when it refuses a value
        annotation = Annotated[kind, typer.Option(help=field.metadata["help"], rich_help_panel="Techniques")]
        found.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation)
        )
    return found
