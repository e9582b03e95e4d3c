"""Builds image classifiers to train and measure: two ResNets, and timm's models if timm is installed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import cast

import torch
from torch import nn

from penstock.bench.train.step.activation_checkpoints import CheckpointedSequential
from penstock.bench.train.step.settings import TrainSettings
from penstock.pipelines.errors import LoaderError


def conv_norm(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a padded convolution and its batch norm, without bias, which the norm would subtract."""
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


class Residual(nn.Module):
    """A residual block, `relu(branch(x) + shortcut(x))`; the shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, branch: nn.Sequential, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        same_shape = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Identity() if same_shape else conv_norm(channels_in, channels_out, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features_NCHW: torch.Tensor) -> torch.Tensor:
        out, shortcut = self.branch(features_NCHW), self.shortcut(features_NCHW)
        # In place: autograd needs neither the branch's output nor the sum, only the result of the ReLU.
        out = out.add_(shortcut) if self.relu.inplace else out + shortcut
        return cast(torch.Tensor, self.relu(out))


def basic_block(channels_in: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Return a block of two 3x3 convolutions (He et al. 2015, figure 5 left) and its number of output channels."""
    first, second = conv_norm(channels_in, width, 3, stride), conv_norm(width, width, 3)
    return Residual(nn.Sequential(first, nn.ReLU(inplace=True), second), channels_in, width, stride), width


def bottleneck(channels_in: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Return a block of 1x1, 3x3 and 1x1 convolutions (figure 5 right) and its number of output channels.

    The last has four times the width. The 3x3 convolution has the stride, not the first 1x1 as in the paper (the usual
    "version 1.5").
    """
    out = 4 * width
    reduce, spatial, expand = (
        conv_norm(channels_in, width, 1),
        conv_norm(width, width, 3, stride),
        conv_norm(width, out, 1),
    )
    branch = nn.Sequential(reduce, nn.ReLU(inplace=True), spatial, nn.ReLU(inplace=True), expand)
    return Residual(branch, channels_in, out, stride), out


class ResNet(nn.Module):
    """Deep residual network (He et al. 2015, arXiv:1512.03385, table 1).

    Input (N, 3, H, W) float, any memory format; output (N, num_classes) logits.
    `small_inputs` is for images of about 32 pixels: a 3x3 stem of stride 1 instead of 7x7 of stride 2, with the same
    max-pool, gives twice the resolution in every stage for about four times the work per image.
    The last norm of each block starts at zero: every block begins as its shortcut (arXiv:1706.02677).
    """

    def __init__(
        self,
        block: Callable[[int, int, int], tuple[nn.Module, int]],
        depths: tuple[int, int, int, int],
        *,
        num_classes: int,
        small_inputs: bool = False,
    ) -> None:
        super().__init__()
        kernel, stride = (3, 1) if small_inputs else (7, 2)
        self.stem = nn.Sequential(
            conv_norm(3, 64, kernel, stride), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            for position in range(depth):
                layer, channels = block(channels, 64 << stage, 2 if stage > 0 and position == 0 else 1)
                blocks.append(layer)
        self.blocks = CheckpointedSequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Residual):
                last = cast(nn.Sequential, module.branch[-1])
                nn.init.zeros_(cast(nn.BatchNorm2d, last[-1]).weight)

    def forward(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.head(self.blocks(self.stem(images_NCHW))))


def resnet18(num_classes: int = 1000, *, small_inputs: bool = False) -> ResNet:
    """Return ResNet-18, which has 11,689,512 parameters with 1000 classes."""
    return ResNet(basic_block, (2, 2, 2, 2), num_classes=num_classes, small_inputs=small_inputs)


def resnet50(num_classes: int = 1000, *, small_inputs: bool = False) -> ResNet:
    """Return ResNet-50, which has 25,557,032 parameters with 1000 classes."""
    return ResNet(bottleneck, (3, 4, 6, 3), num_classes=num_classes, small_inputs=small_inputs)


MODELS: dict[str, Callable[..., nn.Module]] = {"resnet18": resnet18, "resnet50": resnet50}


def build_model(settings: TrainSettings, num_classes: int) -> nn.Module:
    """Return a new float32 classifier on the CPU: a bundled one, else timm's of that name.

    Only bundled models support `small_inputs` (the stem for images of about 32 pixels), `inplace` (activations that
    overwrite their input) and `conv_bias` (zero biases in all convolutions, which the next norm subtracts).

    The weights depend on `settings.seed`; the global generator is unchanged. Raises ValueError for an unknown name or
    invalid settings, LoaderError E-DEPENDENCY if the name is not bundled and timm is not installed.
    """
    name = settings.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        if name in MODELS:
            model = MODELS[name](num_classes, small_inputs=settings.small_inputs)
            _set_techniques(model, inplace=settings.inplace, conv_bias=settings.conv_bias)
            return model
        for option, plain in (("small_inputs", False), ("inplace", True), ("conv_bias", False)):
            if getattr(settings, option) != plain:
                raise ValueError(f"{option} is for the bundled models ({', '.join(MODELS)}), not for {name!r}")
        check_model(name)
        return cast(nn.Module, _timm_for(name).create_model(name, num_classes=num_classes, pretrained=False))


def _set_techniques(model: nn.Module, *, inplace: bool, conv_bias: bool) -> None:
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = inplace
        elif isinstance(module, nn.Conv2d) and conv_bias:
            module.bias = nn.Parameter(torch.zeros(module.out_channels))


def check_model(name: str) -> None:
    """Raise the error of `build_model` for an unknown name, without building a model."""
    if name in MODELS:
        return
    timm = _timm_for(name)
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=5, cutoff=0.5)
        hint = (
            f", and of timm's {len(timm.list_models())} for instance {', '.join(near)}"
            if near
            else ", or any of timm's"
        )
        raise ValueError(f"unknown model {name!r}; valid are {', '.join(MODELS)}{hint}")


def _timm_for(name: str) -> ModuleType:
    return import_timm("timm", f"model {name!r} is not bundled ({', '.join(MODELS)} are)", "a bundled model")


def import_timm(module: str, needed_for: str, instead: str) -> ModuleType:
    """Import a module of timm. Raises LoaderError E-DEPENDENCY that names what needs it and an alternative."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision built for another torch
        raise LoaderError(
            "E-DEPENDENCY",
            f"{needed_for}, and timm cannot be imported ({error})",
            fix=f"pip install timm and the torchvision of this torch, or choose {instead}",
        ) from error
