"""Settings as fields with default, help and rule, which commands turn into options; settings of a benchmark."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

if TYPE_CHECKING:
    from penstock.pipelines.spec import ImagePipeline

Value = TypeVar("Value")

ALL_BACKENDS = "all"
SEARCH_SHARE = 0.4  # share of a run's budget


class Rule(NamedTuple):
    """The valid values of a setting, as text and as a test."""

    words: str
    holds: Callable[[Any], bool]


POSITIVE = Rule("must be above 0", lambda value: value > 0)
FRACTION = Rule("must lie in [0, 1)", lambda value: 0 <= value < 1)
OPEN_FRACTION = Rule("must lie between 0 and 1 (Nesterov's needs some)", lambda value: 0 < value < 1)
_SAME: Any = object()


def setting(default: Value, help_text: str, rule: Rule | None = None, *, asked: Any = _SAME, **option: Any) -> Value:
    """Return a dataclass field that becomes an option with this help.

    asked: default of the option, if different from the field's. option: further arguments of typer.Option; its `min` is
    also checked as a rule.
    """
    about = {"option": typer.Option(help=help_text, **option), "rule": rule}
    return field(default=default, metadata=about | ({} if asked is _SAME else {"asked": asked}))


# Types of fields that several settings share, and of options that several commands share.
Backend = Annotated[str, typer.Option(help="torch, hdf5 or dali; auto uses the saved profile.")]
Decoder = Annotated[str, typer.Option(help="JPEG decoder: auto, native, simplejpeg, turbojpeg or pillow.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images per batch, on each rank.")]
Size = Annotated[int, typer.Option(min=1, help="Height and width of the output images, in pixels.")]
Interpolation = Annotated[
    Literal["bilinear", "bicubic", "lanczos", "box", "nearest", "random"],
    typer.Option(
        help="Filter of the resize: bilinear, bicubic, lanczos, box, nearest; random draws one of the first two."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=0, help="Worker threads or processes; one per processor by default, 0 works in the main thread."),
]
Prefetch = Annotated[int | None, typer.Option(min=1, help="Batches ahead for each worker.")]
CACHE_HELP = "HDF5 cache of DATA, for backends hdf5 and dali; built if it does not exist."
Cache = Annotated[Path | None, typer.Option(help=CACHE_HELP)]
Seed = Annotated[int, typer.Option(min=0, help="Seed of order, crops and flips.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto uses cuda if there is a GPU.")]
Model = Annotated[str, typer.Option(help="resnet18, resnet50, or a timm name.")]
Seconds = Annotated[float, typer.Option(min=0.01, help="Length of each measurement in each round.")]
Rounds = Annotated[int, typer.Option(min=1, help="Number of rounds; each makes every measurement once.")]
MaxBad = Annotated[
    float | None, typer.Option(min=0, help="Maximum bad samples to replace per epoch; below 1: a share.")
]


def crops_of(size: int, interpolation: Any, *, evaluate: bool) -> ImagePipeline:
    """Return the pipeline of imagenet_eval or imagenet_train with this filter. Raises ValueError for a drawn one."""
    from penstock.pipelines.spec import imagenet_eval, imagenet_train

    if evaluate and interpolation == "random":
        raise ValueError("interpolation 'random' is for training: pass --interpolation bicubic with --eval")
    return replace(imagenet_eval(size) if evaluate else imagenet_train(size), interpolation=interpolation)


def option_fields(settings: type[Any]) -> Iterator[tuple[Field[Any], Any, OptionInfo | None]]:
    """Yield each field of settings with its type and its option, or None for a field without one."""
    hints = get_type_hints(settings, include_extras=True)
    for each in fields(settings):
        kind, *notes = get_args(hints[each.name]) if get_origin(hints[each.name]) is Annotated else [hints[each.name]]
        options = [option for option in (each.metadata.get("option"), *notes) if isinstance(option, OptionInfo)]
        yield each, kind, options[0] if options else None


def check_fields(settings: Any) -> None:
    """Raise ValueError that names the field if a value is not in its Literal or breaks its rule; None is valid."""
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


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Settings of a benchmark; each field is an option of `penstock bench`.

    Attributes:
        model: the model to train on the batches, or None.
        budget: None measures `rounds` rounds of `seconds`, however long they take.
        seconds: a maximum if there is a budget.
        rounds: None makes 3, or with a budget as many as fit until the spread is small.
        tune: None searches for "all" and "dali", and if there is a limit.
        tune_seconds: None takes 60, or a share of the budget.
        max_bad: None allows all.
        data_options: options of open_source for the data.
    """

    backend: str = setting(
        ALL_BACKENDS, "all (compares those that run here), torch, hdf5, dali, or auto: the saved profile."
    )
    cache: str | None = setting(None, CACHE_HELP)
    entries: int | None = setting(None, "Serve DATA repeatedly, as this many images.", min=1)
    decoder: Decoder = "auto"
    batch_size: BatchSize = 64
    size: Size = 224
    interpolation: Interpolation = "bilinear"
    workers: Workers = None
    device: str = "cpu"
    dtype: Literal["uint8", "float32", "float16", "bfloat16"] = setting(
        "float32",
        "dtype of the images: float32, float16, bfloat16, uint8.",
        asked=None,
        show_default="the model's dtype, by --amp",
    )
    model: str | None = setting(
        "resnet18", "resnet18, resnet50, a timm name, or none.", asked=None, show_default="resnet18 on a GPU, else none"
    )
    amp: Literal["off", "bf16", "fp16"] = setting("off", "Mixed precision of the model: off, bf16 or fp16.")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = setting(
        "off", "torch.compile of the model: off, default, reduce-overhead or max-autotune."
    )
    budget: float | None = setting(None, "Maximum seconds of the whole run.", min=1, asked=120.0)
    seconds: Seconds = 4.0
    rounds: int | None = setting(
        None, "Maximum number of rounds.", min=1, show_default="until they agree or time is up; 3 with --thorough"
    )
    baseline: bool = setting(False, "Also measure the usual loader: torch's DataLoader with Pillow.")
    tune: bool | None = setting(None, "Search the settings first.", show_default="on for all, dali, and with a limit")
    tune_seconds: float | None = setting(
        None, "Maximum seconds of that search.", POSITIVE, show_default="0.4 of the budget; 60 with --thorough"
    )
    max_cpu: float | None = setting(None, "Maximum processors that the loader may use.", POSITIVE, metavar="CORES")
    max_memory: float | None = setting(None, "Maximum memory of the loader and its workers.", POSITIVE, metavar="MB")
    apply: bool = setting(False, "Try and measure the verdict's advice where possible.", asked=True)
    seed: Seed = 0
    max_bad: MaxBad = 0.01
    data_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.tune is False and self._has_limits:
            raise ValueError("only the search observes limits: leave out --no-tune, or --max-cpu and --max-memory")

    @property
    def _has_limits(self) -> bool:
        return self.max_cpu is not None or self.max_memory is not None

    def without_paths(self) -> BenchSettings:
        """Return the settings with possible paths reduced to names, because records are shared."""
        given = self.data_options.items()
        options = {name: Path(value).name if isinstance(value, str) else value for name, value in given}
        cache = self.cache and os.fsencode(Path(self.cache).name).decode(errors="backslashreplace")
        return replace(self, cache=cache, data_options=options)

    @property
    def search_seconds(self) -> float:
        """Return the maximum seconds of the search for settings."""
        return self.tune_seconds or (60.0 if self.budget is None else SEARCH_SHARE * self.budget)

    @property
    def most_rounds(self) -> float:
        """Return the maximum number of rounds."""
        return self.rounds or (3 if self.budget is None else math.inf)

    @property
    def tunes(self) -> bool:
        """Whether settings are searched."""
        return self.backend in (ALL_BACKENDS, "dali") or self._has_limits if self.tune is None else self.tune
