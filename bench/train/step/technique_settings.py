"""Defines the settings of a training run in groups; each field is an option of `penstock train`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.bench.record.settings import (
    FRACTION,
    OPEN_FRACTION,
    POSITIVE,
    Device,
    Interpolation,
    Model,
    Seed,
    setting,
)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Choose the model and the length of the run."""

    model: Model = "resnet18"
    epochs: int = setting(10, "Epochs; with --resume they may grow.", min=1)
    label_smoothing: float = setting(0.0, "Label smoothing, from 0 to below 1.", FRACTION)
    device: Device = "cpu"
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointPlan:
    """Choose when a run saves itself to `file` in addition to the end of each epoch and a signal.

    If not strict, a run may resume with another pipeline, dtype, policy for bad samples or validation set.
    """

    file: Path
    checkpoint_every: int | None = setting(None, "Also save after every N updates.", min=1)
    resume: bool = setting(False, "Resume from --checkpoint if it exists.")
    strict: bool = setting(True, "Refuse to resume on other images.")
    stop_after: int | None = setting(None, "Save and stop after this many updates.", min=1)


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """Choose the augmentations, with the names of imagenet_train."""

    min_scale: float = setting(0.25, "Smallest area of a random crop, as a fraction.")
    interpolation: Interpolation = "bilinear"
    auto_augment: str | None = setting(None, "rand (RandAugment) or trivial (TrivialAugmentWide).")
    color_jitter: tuple[float, float, float, float] | None = setting(
        None, "Jitter of brightness, contrast, saturation and hue, such as .4 .4 .4 .1", metavar="B C S H"
    )
    erasing: float = setting(0.0, "Probability that a box of an image is erased.")
    mixup: float = setting(0.0, "Alpha of mixup, such as 0.2; 0 for none.")
    cutmix: float = setting(0.0, "Alpha of cutmix, such as 1; 0 for none.")


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """Choose the optimiser. Norms and biases have no weight decay, and lars and lamb do not adapt them."""

    optimizer: Literal["sgd", "adamw", "lars", "lamb"] = setting(
        "sgd", "sgd (Nesterov), adamw, lars (large batches) or lamb; the last two need timm."
    )
    lr: float = setting(0.05, "Peak learning rate.", POSITIVE)
    lr_scaling: Literal["none", "linear", "sqrt"] = setting(
        "none", "Multiply lr by (global batch / base batch), its square root, or not at all."
    )
    base_batch: int = setting(256, "Global batch for which lr is meant, with --lr-scaling.", min=1)
    momentum: float = setting(0.9, "Momentum of sgd and lars.", OPEN_FRACTION)
    weight_decay: float = setting(5e-4, "Weight decay of matrices and filters.", min=0)
    beta1: float = setting(0.9, "Decay of the first moment of adamw and lamb.", FRACTION)
    beta2: float = setting(0.999, "Decay of the second moment of adamw and lamb.", FRACTION)
    eps: float = setting(1e-8, "Term added to the root of the second moment of adamw and lamb.", POSITIVE)
    trust: float = setting(0.001, "Trust coefficient of lars.", POSITIVE)
    kernel: Literal["fused", "foreach", "loop"] = setting(
        "fused", "How sgd and adamw run: fused, foreach or a loop over the weights."
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """Choose the learning rate over the run.

    "cosine" rises linearly during the first `warmup` of all updates, then falls to zero as half a cosine; "onecycle"
    is torch's OneCycleLR with a rise of `warmup`; "cyclic" oscillates `cycles` times between a tenth of lr and lr;
    "constant" stays at lr. With `schedule_epochs` a run follows the schedule of that many epochs from its first update
    on, and can later grow to them with the same result as one long run.
    """

    schedule: Literal["cosine", "onecycle", "cyclic", "constant"] = setting(
        "cosine", "cosine (with warm-up), onecycle, cyclic or constant."
    )
    warmup: float = setting(0.25, "Share of the updates during which the learning rate rises.", FRACTION)
    schedule_epochs: int | None = setting(
        None, "Epochs of the schedule, if the run will grow later; --epochs by default.", min=1
    )
    cycles: int = setting(4, "Number of cycles of the cyclic schedule.", min=1)


@dataclass(frozen=True, kw_only=True)
class SpeedSettings:
    """Choose how the device computes; TF32 rounds inputs of float32 products to a mantissa of 10 bits."""

    amp: Literal["off", "bf16", "fp16"] = setting("off", "Mixed precision: off, bf16 or fp16 (CUDA).")
    channels_last: bool = setting(True, "Images and weights in NHWC order.")
    cudnn_benchmark: bool = setting(True, "Let cuDNN time its algorithms (CUDA).")
    tf32: bool = setting(True, "Float32 products in TF32 (CUDA).")
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = setting(
        "off", "torch.compile: off, default, reduce-overhead (CUDA graphs) or max-autotune."
    )


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Choose what is kept in memory.

    Checkpointing "blocks" keeps only the inputs of the model's blocks and computes the rest twice; "segments" does the
    same for `segments` groups of blocks of a bundled model.
    """

    accumulate: int = setting(1, "Batches per update (gradient accumulation).", min=1)
    clip_norm: float | None = setting(None, "Maximum norm of all gradients together.", POSITIVE)
    checkpointing: Literal["off", "blocks", "segments"] = setting(
        "off", "Compute activations twice instead of keeping them: off, blocks or segments."
    )
    segments: int = setting(2, "Segments, with --checkpointing segments.", min=1)
    inplace: bool = setting(True, "In-place activations (bundled models).")
    conv_bias: bool = setting(False, "Biases before batch norm, which subtracts them (bundled models).")


@dataclass(frozen=True, kw_only=True)
class DebugSettings:
    """Choose debugging tools, which slow a run down; anomaly names the operation of the forward pass."""

    profile: str | None = setting(None, "Write a trace of three steps here (Chrome's format).")
    anomaly: bool = setting(False, "Stop if a gradient becomes NaN, and name its operation (slow).")


TECHNIQUE_GROUPS: tuple[type[Any], ...] = (
    OptimizerSettings,
    ScheduleSettings,
    SpeedSettings,
    MemorySettings,
    DebugSettings,
)
