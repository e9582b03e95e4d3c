"""Defines TrainSettings: all settings of a training run in one dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.bench.record.settings import check_fields, setting
from penstock.bench.train.step.technique_settings import (
    DebugSettings,
    MemorySettings,
    OptimizerSettings,
    RunSettings,
    ScheduleSettings,
    SpeedSettings,
)


@dataclass(frozen=True, kw_only=True)
class TrainSettings(RunSettings, OptimizerSettings, ScheduleSettings, SpeedSettings, MemorySettings, DebugSettings):
    """Settings for training a classifier. The defaults train ResNet-18 on the demo set of `penstock synth`.

    The techniques are documented in the base classes. Raises ValueError for settings that cannot work.

    Attributes:
        model: a name for `build_model`.
        small_inputs: whether to use the model's stem for images of about 32 pixels.
        batch_size: images in a batch of one rank's loader; only lr_scaling needs it.
    """

    small_inputs: bool = False
    batch_size: int | None = setting(None, "Images per batch, on each rank.", min=1)

    def __post_init__(self) -> None:
        self._check_device()
        check_fields(self)
        self._check_combinations()

    def _check_device(self) -> None:
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {self.device!r}") from error
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {self.device!r}")
        if device.type == "cuda" and not 0 <= (device.index or 0) < torch.cuda.device_count():
            raise ValueError(f"device {self.device!r} does not exist; CUDA devices found: {torch.cuda.device_count()}")

    def _check_combinations(self) -> None:
        on_cpu = torch.device(self.device).type == "cpu"
        if on_cpu and self.amp == "fp16":
            raise ValueError("amp='fp16' needs a CUDA device: on a CPU use 'bf16', or 'off' if that is faster")
        if on_cpu and self.compile == "reduce-overhead":
            raise ValueError("compile='reduce-overhead' uses CUDA graphs, which need a CUDA device: use 'default'")
        if self.compile != "off" and self.checkpointing != "off":
            raise ValueError("compile and checkpointing exclude each other: the compiler decides what to keep")
        if self.schedule == "onecycle" and self.warmup == 0:
            raise ValueError("warmup must be above 0 with schedule='onecycle', which rises before it falls")
        if self.schedule_epochs is not None and self.schedule_epochs < self.epochs:
            raise ValueError(f"schedule_epochs must be at least epochs={self.epochs}, got {self.schedule_epochs}")
        if self.lr_scaling != "none" and self.batch_size is None:
            raise ValueError(f"lr_scaling={self.lr_scaling!r} needs batch_size, to compute the global batch")

    @property
    def image_dtype(self) -> torch.dtype:
        """Return the dtype of the model's computation, in which images need no conversion."""
        return {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.amp]

    @property
    def memory_format(self) -> torch.memory_format:
        """Return the memory format of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    @property
    def scheduled_epochs(self) -> int:
        """Return the number of epochs of the learning-rate schedule."""
        return self.schedule_epochs or self.epochs

    def peak_lr(self, world_size: int = 1) -> float:
        """Return lr, scaled with the global batch (batch_size * accumulate * world_size) according to lr_scaling.

        "linear" is Goyal et al. 2017 (arXiv:1706.02677), "sqrt" Krizhevsky 2014 (arXiv:1404.5997).
        """
        if self.lr_scaling == "none" or self.batch_size is None:
            return self.lr
        ratio = self.batch_size * self.accumulate * world_size / self.base_batch
        return self.lr * (ratio if self.lr_scaling == "linear" else ratio**0.5)
