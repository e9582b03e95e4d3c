"""Settings of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train a classifier. The defaults train ResNet-18 on the demo set of `penstock synth`.

    model: a name that `create_model` takes; small_inputs: its stem for images of about 32 pixels.
    device: where to train, "cpu", "cuda" or "cuda:N".
    lr: the peak learning rate; momentum and weight_decay of SGD with Nesterov momentum (norms and biases do not decay).
    schedule: "cosine" rises in a line during the first `warmup` of all steps (a fraction), then falls to zero as half a
    cosine; "constant" stays at lr.
    amp: automatic mixed precision, "off", "bf16", or "fp16" with gradient scaling (CUDA only).
    channels_last, cudnn_benchmark: memory format of model and images; let cuDNN time its algorithms for this shape.
    seed: of the initial weights and of dropout.
    Raises ValueError for settings that cannot work.
    """

    model: str = "resnet18"
    small_inputs: bool = False
    device: str = "cpu"
    epochs: int = 10
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.25
    label_smoothing: float = 0.0
    amp: Literal["off", "bf16", "fp16"] = "off"
    channels_last: bool = True
    cudnn_benchmark: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_device()
        if self.epochs < 1:
            raise ValueError(f"epochs is at least 1, not {self.epochs!r}")
        if not self.lr > 0:
            raise ValueError(f"lr is above zero, not {self.lr!r}")
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum lies between 0 and 1 (Nesterov's needs some), not {self.momentum!r}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay is zero or more, not {self.weight_decay!r}")
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule is 'cosine' or 'constant', not {self.schedule!r}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a fraction of all steps, in [0, 1), not {self.warmup!r}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing lies in [0, 1), not {self.label_smoothing!r}")
        if self.amp not in ("off", "bf16", "fp16"):
            raise ValueError(f"amp is 'off', 'bf16' or 'fp16', not {self.amp!r}")

    def _check_device(self) -> None:
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"device is 'cpu', 'cuda' or 'cuda:N', not {self.device!r}") from error
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device is 'cpu', 'cuda' or 'cuda:N', not {self.device!r}")
        if device.type == "cuda" and not 0 <= (device.index or 0) < torch.cuda.device_count():
            raise ValueError(
                f"there is no device {self.device!r} here; CUDA devices found: {torch.cuda.device_count()}"
            )
        if device.type == "cpu" and self.amp == "fp16":
            raise ValueError("amp='fp16' needs a CUDA device: on a CPU take 'bf16', or 'off' where that is not faster")

    @property
    def memory_format(self) -> torch.memory_format:
        """Of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format
