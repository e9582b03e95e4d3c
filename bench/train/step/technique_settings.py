"""Defines the techniques of a training run as groups of settings; each field is a command-line option with its help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_type_hints

Value = TypeVar("Value")


class Rule(NamedTuple):
    """Say which values a number may have, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


POSITIVE = Rule("must be above 0", lambda value: value > 0)
NOT_NEGATIVE = Rule("must be at least 0", lambda value: value >= 0)
COUNT = Rule("must be at least 1", lambda value: value >= 1)
FRACTION = Rule("must lie in [0, 1)", lambda value: 0 <= value < 1)
OPEN_FRACTION = Rule("must lie between 0 and 1 (Nesterov's needs some)", lambda value: 0 < value < 1)


def setting(default: Value, help_text: str = "", rule: Rule | None = None) -> Value:
    """Return a dataclass field with a default, the help of its command-line option, and a rule for its values."""
    return field(default=default, metadata={"help": help_text, "rule": rule})


def check_fields(settings: Any) -> None:
    """Raise ValueError, naming the field, if a value is none of its Literal's or breaks its rule; None breaks none."""
    hints = get_type_hints(type(settings))
    for each in fields(settings):
        name, value, rule = each.name, getattr(settings, each.name), each.metadata.get("rule")
        choices = get_args(hints[name]) if getattr(hints[name], "__origin__", None) is Literal else ()
        if choices and value not in choices:
            known = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
            raise ValueError(f"{name} must be {known}, got {value!r}")
        if rule is not None and value is not None and not rule.holds(value):
            raise ValueError(f"{name} {rule.words}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Choose what turns gradients into weights. Norms and biases do not decay, and lars and lamb do not adapt them."""

    optimizer: Literal["sgd", "adamw", "lars", "lamb"] = setting(
        "sgd", "sgd (Nesterov), adamw, lars (large batches) or lamb; the last two need timm."
    )
    lr: float = setting(0.05, "Peak learning rate.", POSITIVE)
    lr_scaling: Literal["none", "linear", "sqrt"] = setting(
        "none", "Multiply lr by (global batch / base batch), its square root, or none of it."
    )
    base_batch: int = setting(256, "Global batch for which lr is meant, with --lr-scaling.", COUNT)
    momentum: float = setting(0.9, "Momentum of sgd and lars.", OPEN_FRACTION)
    weight_decay: float = setting(5e-4, "Weight decay of matrices and filters.", NOT_NEGATIVE)
    beta1: float = setting(0.9, "Decay of the first moment, of adamw and lamb.", FRACTION)
    beta2: float = setting(0.999, "Decay of the second moment, of adamw and lamb.", FRACTION)
    eps: float = setting(1e-8, "Added to the root of the second moment, of adamw and lamb.", POSITIVE)
    trust: float = setting(0.001, "Trust coefficient of lars.", POSITIVE)
    kernel: Literal["fused", "foreach", "loop"] = setting(
        "fused", "How sgd and adamw run: fused, foreach or a loop over the weights."
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """Choose the learning rate over the run.

    "cosine" rises in a line during the first `warmup` of all updates, then falls to zero as half a cosine; "onecycle"
    is torch's OneCycleLR, whose rise takes `warmup`; "cyclic" goes up and down between a tenth of lr and lr, `cycles`
    times; "constant" stays at lr. A run that may grow to `schedule_epochs` follows the schedule of that many from its
    first update on: it equals a run that was that long from the begin.
    """

    schedule: Literal["cosine", "onecycle", "cyclic", "constant"] = setting(
        "cosine", "cosine (with warm-up), onecycle, cyclic or constant."
    )
    warmup: float = setting(0.25, "Share of the updates during which the learning rate rises.", FRACTION)
    schedule_epochs: int | None = setting(
        None, "Epochs that the schedule is made for, if the run is to grow; --epochs by default.", COUNT
    )
    cycles: int = setting(4, "Number of ups and downs of the cyclic schedule.", COUNT)


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """Choose how the device computes; TF32 rounds inputs of float32 products to 10 bits of mantissa."""

    amp: Literal["off", "bf16", "fp16"] = setting("off", "Mixed precision: off, bf16 or fp16 (CUDA).")
    channels_last: bool = setting(True, "Images and weights in NHWC order.")
    cudnn_benchmark: bool = setting(True, "Let cuDNN time its algorithms (CUDA).")
    tf32: bool = setting(True, "Float32 products in TF32 (CUDA).")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = setting(
        "off", "torch.compile: off, default, reduce-overhead (CUDA graphs) or max-autotune."
    )


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Choose what is kept in memory, for how long.

    Checkpointing "blocks" keeps the inputs of the model's blocks alone and computes the rest twice; "segments" does so
    for `segments` runs of blocks of a bundled model.
    """

    accumulate: int = setting(1, "Batches whose gradients add up to one update.", COUNT)
    clip_norm: float | None = setting(None, "Largest norm of all gradients together.", POSITIVE)
    checkpointing: Literal["off", "blocks", "segments"] = setting(
        "off", "Compute activations twice instead of keeping them: off, blocks or segments."
    )
    segments: int = setting(2, "Segments, with --checkpointing segments.", COUNT)
    inplace: bool = setting(True, "In-place activations (bundled models).")
    conv_bias: bool = setting(False, "Biases before batch norm, which subtracts them (bundled models).")


@dataclass(frozen=True, kw_only=True)
class DebugSettings:
    """Choose tools that slow a run down, off by default; anomaly names the operation of the forward pass."""

    profile: str | None = setting(None, "Write a trace of three steps here (Chrome's format).")
    anomaly: bool = setting(False, "Stop at the operation whose gradient becomes NaN (slow).")


TECHNIQUE_GROUPS: tuple[type[Any], ...] = (
    OptimizerSettings,
    ScheduleSettings,
    SpeedSettings,
    MemorySettings,
    DebugSettings,
)
