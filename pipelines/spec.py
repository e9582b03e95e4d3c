"""Settings of the two stages: `ImagePipeline` for crop, resize and normalisation, `Augmentations` for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_MAX_PIXELS = 100_000_000
RAND_BINS = 31  # number of magnitudes of torchvision's RandAugment and TrivialAugmentWide
_MAX_RAND_OPS = 16


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Augmentations:
    """Choose the augmentations of the batch stage; the defaults do nothing, and they apply in the order of the fields.

    Raises ValueError for settings that cannot work.

    Attributes:
        auto_augment: "rand" for torchvision's RandAugment, "trivial" for its TrivialAugmentWide.
        rand_ops: number of operations that RandAugment applies to each image, 1 to 16.
        rand_magnitude: magnitude of RandAugment's operations, 0 to 30.
        color_jitter: (brightness, contrast, saturation, hue) as torchvision's ColorJitter takes them, hue at most 0.5.
        erasing: probability of torchvision's RandomErasing, which sets a box to 0 after normalising (with dtype uint8:
            to the mean colour).
        mixup: alpha of the Beta distribution of the shares by which pairs of images are blended; 0 for no mixup.
        cutmix: likewise for pairs that exchange a box; with both, a coin flip chooses for each pair.
    """

    auto_augment: Literal["rand", "trivial"] | None = None
    rand_ops: int = 2
    rand_magnitude: int = 9
    color_jitter: tuple[float, float, float, float] | None = None
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.auto_augment not in (None, "rand", "trivial"):
            raise ValueError(f"auto_augment is None, 'rand' or 'trivial', not {self.auto_augment!r}")
        for name, low, high in (("rand_ops", 1, _MAX_RAND_OPS), ("rand_magnitude", 0, RAND_BINS - 1)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise ValueError(f"{name} is an integer from {low} to {high}, not {value!r}")
        jitter = self.color_jitter
        if jitter is not None and not (
            isinstance(jitter, tuple)
            and len(jitter) == 4
            and all(_is_number(part) and part >= 0 for part in jitter)
            and jitter[3] <= 0.5
        ):
            wanted = "(brightness, contrast, saturation, hue), a tuple of numbers from 0, hue at most 0.5"
            raise ValueError(f"color_jitter is None or {wanted}, not {jitter!r}")
        if not _is_number(self.erasing) or not 0 <= self.erasing <= 1:
            raise ValueError(f"erasing is a probability, not {self.erasing!r}")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise ValueError(f"{name} is an alpha above 0, or 0 for none, not {value!r}")

    @property
    def changes_pixels(self) -> bool:
        """Whether any operation works on uint8 pixels, before normalising."""
        return self.auto_augment is not None or self.jitters

    @property
    def jitters(self) -> bool:
        """Whether color_jitter has any effect."""
        return self.color_jitter is not None and any(self.color_jitter)

    @property
    def mixes(self) -> bool:
        """Whether pairs of samples are mixed, so that labels become soft targets."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def active(self) -> bool:
        """Whether any augmentation has an effect."""
        return self.changes_pixels or self.erasing > 0 or self.mixes


NO_AUGMENTATIONS = Augmentations()


@dataclass(frozen=True, kw_only=True)
class ImagePipeline:
    """Choose what the sample stage does with each image and what the batch stage does with each batch.

    Sample stage, uint8: crop, antialiased bilinear resize to `size`, horizontal flip.
    Batch stage, on the target device: `augment`, then `(pixel / 255 - mean) / std` for each channel.
    Raises ValueError for settings that cannot work.

    Attributes:
        size: (height, width) of the resulting images, in pixels.
        crop: "random_resized" draws area and aspect as torchvision's RandomResizedCrop does; "center" takes the centre
            window that has the aspect of `size`; "full" resizes the whole image, whatever its aspect.
        scale: lowest and highest share of the image's area, for "random_resized".
        ratio: lowest and highest aspect (width / height) of the window, for "random_resized".
        center_fraction: side of the window, as a share of the largest that fits, for "center".
        flip: probability of a horizontal flip.
        mean: mean of each channel (red, green, blue), on a scale from 0 to 1.
        std: standard deviation of each channel, on the same scale.
        exif: "ignore" leaves the pixels as stored (torchvision's choice), "apply" turns them upright first.
        resample: resize kernel, "torch" or "pillow" (Pillow-SIMD where installed); they agree within one level.
        max_pixels: an image that declares more pixels is refused before memory is allocated for it.
        augment: augmentations beyond crop and flip.
    """

    size: tuple[int, int] = (224, 224)
    crop: Literal["random_resized", "center", "full"] = "random_resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    center_fraction: float = 0.875
    flip: float = 0.5
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    exif: Literal["ignore", "apply"] = "ignore"
    resample: Literal["torch", "pillow"] = "torch"
    max_pixels: int = DEFAULT_MAX_PIXELS
    augment: Augmentations = NO_AUGMENTATIONS

    def __post_init__(self) -> None:
        if len(self.size) != 2 or not all(isinstance(side, int) and 1 <= side <= 16384 for side in self.size):
            raise ValueError(f"size is (height, width), each 1 to 16384 pixels, not {self.size!r}")
        if self.crop not in ("random_resized", "center", "full"):
            raise ValueError(f"crop is 'random_resized', 'center' or 'full', not {self.crop!r}")
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale is (low, high) with 0 < low <= high <= 1, not {self.scale!r}")
        if len(self.ratio) != 2 or not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ValueError(f"ratio is (low, high) with 0 < low <= high < inf, not {self.ratio!r}")
        if not 0 < self.center_fraction <= 1:
            raise ValueError(f"center_fraction lies in (0, 1], not {self.center_fraction!r}")
        if not 0 <= self.flip <= 1:
            raise ValueError(f"flip is a probability, not {self.flip!r}")
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != 3 or len(self.std) != 3 or not finite or not all(s > 0 for s in self.std):
            raise ValueError(f"mean and std have three finite values, std above zero, not {self.mean!r}, {self.std!r}")
        if self.exif not in ("ignore", "apply"):
            raise ValueError(f"exif is 'ignore' or 'apply', not {self.exif!r}")
        if self.resample not in ("torch", "pillow"):
            raise ValueError(f"resample is 'torch' or 'pillow', not {self.resample!r}")
        if self.max_pixels < 1:
            raise ValueError(f"max_pixels is at least 1, not {self.max_pixels!r}")
        if not isinstance(self.augment, Augmentations):
            raise ValueError(f"augment is an Augmentations, not {self.augment!r}")

    @property
    def random(self) -> bool:
        """Whether anything is drawn at random; if not, every epoch yields the same pixels."""
        return self.crop == "random_resized" or self.flip > 0 or self.augment.active


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def imagenet_train(size: int | tuple[int, int] = 224, **settings: object) -> ImagePipeline:
    """Return the usual pipeline for training on ImageNet: RandomResizedCrop and a flip with probability 1/2.

    `size` is in pixels, one side or (height, width); `settings` are fields of ImagePipeline and of Augmentations, such
    as flip=0.0, auto_augment="rand" or mixup=0.2.
    """
    chosen = {field.name: settings.pop(field.name) for field in fields(Augmentations) if field.name in settings}
    if chosen:
        if "augment" in settings:
            raise ValueError(f"give augment, or {', '.join(chosen)}, not both")
        settings["augment"] = Augmentations(**chosen)  # type: ignore[arg-type]
    return ImagePipeline(size=_pair(size), **settings)  # type: ignore[arg-type]


def imagenet_eval(size: int | tuple[int, int] = 224, *, center_fraction: float = 0.875) -> ImagePipeline:
    """Return the usual pipeline for evaluation: a centre crop with the field of view of `Resize(256), CenterCrop(224)`.

    `size` is in pixels, one side or (height, width); nothing is flipped.
    """
    return ImagePipeline(size=_pair(size), crop="center", flip=0.0, center_fraction=center_fraction)
