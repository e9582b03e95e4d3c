"""How settings are declared: as fields with a default, a help and a rule, of which commands make their options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

Value = TypeVar("Value")


class Rule(NamedTuple):
    """Say which values a setting may have, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


POSITIVE = Rule("must be above 0", lambda value: value > 0)
FRACTION = Rule("must lie in [0, 1)", lambda value: 0 <= value < 1)
OPEN_FRACTION = Rule("must lie between 0 and 1 (Nesterov's needs some)", lambda value: 0 < value < 1)


def one_of(known: Collection[str]) -> Rule:
    """Return the rule for a value that is one of several."""
    return Rule(f"must be one of {', '.join(known)}", lambda value: value in known)


_SAME: Any = object()


def setting(default: Value, help_text: str, rule: Rule | None = None, *, asked: Any = _SAME, **option: Any) -> Value:
    """Return a dataclass field that is an option with this help.

    asked: default of the option, if it is not that of the field. option: further arguments of typer.Option; its `min`
    is a rule, too.
    """
    about = {"option": typer.Option(help=help_text, **option), "rule": rule}
    return field(default=default, metadata=about | ({} if asked is _SAME else {"asked": asked}))


# Types of fields that several settings have, and of options that several commands have.
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
    Path | None, typer.Option(help="HDF5 cache of DATA, for backends hdf5 and dali; built if it does not exist.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of order, crops and flips.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto uses cuda if there is a GPU.")]
Model = Annotated[str, typer.Option(help="resnet18, resnet50, or a timm name.")]
Seconds = Annotated[float, typer.Option(min=0.01, help="Length of each measurement in each round.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; each makes every measurement once.")]
MaxBad = Annotated[float | None, typer.Option(min=0, help="Most bad samples to replace per epoch; below 1 a share.")]


def option_fields(settings: type[Any]) -> Iterator[tuple[Field[Any], Any, OptionInfo | None]]:
    """Yield each field of settings, its type, and the option that it is; None for a field that is none."""
    hints = get_type_hints(settings, include_extras=True)
    for each in fields(settings):
        kind, *notes = get_args(hints[each.name]) if get_origin(hints[each.name]) is Annotated else [hints[each.name]]
        options = [option for option in (each.metadata.get("option"), *notes) if isinstance(option, OptionInfo)]
        yield each, kind, options[0] if options else None


def check_fields(settings: Any) -> None:
    """Raise ValueError, naming the field, if a value is none of its Literal's or breaks its rule; None breaks none."""
    for each, kind, option in option_fields(type(settings)):
        name, value, rule = each.name, getattr(settings, each.name), each.metadata.get("rule")
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices and value not in choices:
            known = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
            raise ValueError(f"{name} must be {known}, got {value!r}")
        if value is None:
            continue
        if option is not None and option.min is not None and value < option.min:
            raise ValueError(f"{name} must be at least {option.min:g}, got {value!r}")
        if rule is not None and not rule.holds(value):
            raise ValueError(f"{name} {rule.words}, got {value!r}")
