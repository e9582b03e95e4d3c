"""The techniques of a training run as groups of settings: each field is an option of `penstock train` and `ablate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_type_hints

Value = TypeVar("Value")


def setting(default: Value, help_text: str) -> Value:
    """A dataclass field with a default and the help of its command-line option."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Who turns gradients into weights. Norms and biases do not decay, and lars and lamb do not adapt them.

    lr: the peak learning rate, at the global batch `base_batch` if lr_scaling is not "none".
    """

    optimizer: Literal["sgd", "adamw", "lars", "lamb"] = setting(
        "sgd", "sgd (Nesterov), adamw, lars (large batches) or lamb."
    )
    lr: float = setting(0.05, "Peak learning rate.")
    lr_scaling: Literal["none", "linear", "sqrt"] = setting(
        "none", "Multiply lr by (global batch / base batch), its square root, or none of it."
    )
    base_batch: int = setting(256, "Global batch for which lr is meant, with --lr-scaling.")
    momentum: float = setting(0.9, "Momentum of sgd and lars.")
    weight_decay: float = setting(5e-4, "Weight decay of matrices and filters.")
    beta1: float = setting(0.9, "Decay of the first moment, of adamw and lamb.")
    beta2: float = setting(0.999, "Decay of the second moment, of adamw and lamb.")
    eps: float = setting(1e-8, "Added to the root of the second moment, of adamw and lamb.")
    trust: float = setting(0.001, "Trust coefficient of lars.")
    kernel: Literal["fused", "foreach", "loop"] = setting(
        "fused", "How sgd and adamw run: fused, foreach or a loop over the weights."
    )

    def check_optimizer(self) -> None:
        """Raises ValueError for settings that cannot work."""
        _check_choices(self, "optimizer", "lr_scaling", "kernel")
        if not self.lr > 0:
            raise ValueError(f"lr is above zero, not {self.lr!r}")
        if self.base_batch < 1:
            raise ValueError(f"base_batch is at least 1, not {self.base_batch!r}")
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum lies between 0 and 1 (Nesterov's needs some), not {self.momentum!r}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay is zero or more, not {self.weight_decay!r}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} lies in [0, 1), not {getattr(self, name)!r}")
        for name in ("eps", "trust"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is above zero, not {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """The learning rate over the run.

    "cosine" rises in a line during the first `warmup` of all updates (a fraction), then falls to zero as half a cosine;
    "onecycle" is torch's OneCycleLR, whose rise takes `warmup`; "cyclic" goes up and down between a tenth of lr and lr,
    `cycles` times; "constant" stays at lr.
    """

    schedule: Literal["cosine", "onecycle", "cyclic", "constant"] = setting(
        "cosine", "cosine (with warm-up), onecycle, cyclic or constant."
    )
    warmup: float = setting(0.25, "Share of the updates during which the learning rate rises.")
    cycles: int = setting(4, "Number of ups and downs of the cyclic schedule.")

    def check_schedule(self) -> None:
        """Raises ValueError for settings that cannot work."""
        _check_choices(self, "schedule")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a fraction of all steps, in [0, 1), not {self.warmup!r}")
        if self.schedule == "onecycle" and self.warmup == 0:
            raise ValueError("warmup is above zero with schedule='onecycle', which rises before it falls")
        if self.cycles < 1:
            raise ValueError(f"cycles is at least 1, not {self.cycles!r}")


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """How the device computes.

    amp: automatic mixed precision, "off", "bf16", or "fp16" with gradient scaling (CUDA only).
    channels_last, cudnn_benchmark: memory format of model and images; let cuDNN time its algorithms for this shape.
    tf32: float32 products on Ampere and later may round their inputs to 10 bits of mantissa (no effect elsewhere).
    compile: torch.compile's mode; "reduce-overhead" replays CUDA graphs.
    """

    amp: Literal["off", "bf16", "fp16"] = setting("off", "Mixed precision: off, bf16 or fp16 (CUDA).")
    channels_last: bool = setting(True, "Images and weights in NHWC order.")
    cudnn_benchmark: bool = setting(True, "Let cuDNN time its algorithms (CUDA).")
    tf32: bool = setting(True, "Float32 products in TF32 (CUDA).")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = setting(
        "off", "torch.compile: off, default, reduce-overhead (CUDA graphs) or max-autotune."
    )

    def check_speed(self) -> None:
        """Raises ValueError for settings that cannot work."""
        _check_choices(self, "amp", "compile")


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """What is kept in memory, for how long.

    accumulate: batches whose gradients are added up before an update, which is that of one batch so many times larger.
    clip_norm: largest norm of all gradients together, None for no limit.
    checkpointing: "blocks" keeps the inputs of the model's blocks alone and computes the rest twice; "segments" does so
    for `segments` runs of blocks of a bundled model. inplace, conv_bias: of the bundled models' activations and of
    their convolutions, whose bias the norm that follows subtracts again.
    """

    accumulate: int = setting(1, "Batches whose gradients add up to one update.")
    clip_norm: float | None = setting(None, "Largest norm of all gradients together.")
    checkpointing: Literal["off", "blocks", "segments"] = setting(
        "off", "Compute activations twice instead of keeping them: off, blocks or segments."
    )
    segments: int = setting(2, "Segments, with --checkpointing segments.")
    inplace: bool = setting(True, "In-place activations (bundled models).")
    conv_bias: bool = setting(False, "Biases before batch norm, which subtracts them (bundled models).")

    def check_memory(self) -> None:
        """Raises ValueError for settings that cannot work."""
        _check_choices(self, "checkpointing")
        if self.accumulate < 1:
            raise ValueError(f"accumulate is at least 1, not {self.accumulate!r}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is above zero, not {self.clip_norm!r}")
        if self.segments < 1:
            raise ValueError(f"segments is at least 1, not {self.segments!r}")


@dataclass(frozen=True, kw_only=True)
class DebugSettings:
    """Tools that slow a run down, off by default.

    profile: file for a trace of three steps, which chrome://tracing and Perfetto open. anomaly: stop where a gradient
    becomes NaN, and name the operation of the forward pass it belongs to.
    """

    profile: str | None = setting(None, "Write a trace of three steps here (Chrome's format).")
    anomaly: bool = setting(False, "Stop at the operation whose gradient becomes NaN (slow).")


SETTING_GROUPS: tuple[type[Any], ...] = (
    OptimizerSettings,
    ScheduleSettings,
    SpeedSettings,
    MemorySettings,
    DebugSettings,
)


def _check_choices(settings: object, *names: str) -> None:
    """Raises ValueError if a field with a fixed set of values has another one."""
    hints = get_type_hints(type(settings))
    for name in names:
        choices, value = get_args(hints[name]), getattr(settings, name)
        if value not in choices:
            known = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
            raise ValueError(f"{name} is {known}, not {value!r}")
