"""Settings of what happens to a sample and to a batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_MAX_PIXELS = 100_000_000
RAND_BINS = 31  # magnitudes of torchvision's RandAugment and TrivialAugmentWide
_MAX_RAND_OPS = 16


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Augmentations:
    """What is drawn for each sample beyond crop and flip; the defaults do nothing. Applied in this order.

    auto_augment: "rand" is torchvision's RandAugment with `rand_ops` operations of magnitude `rand_magnitude` (0 to
    30), "trivial" its TrivialAugmentWide. color_jitter: (brightness, contrast, saturation, hue) as torchvision's
    ColorJitter takes them, hue at most 0.5. erasing: probability of torchvision's RandomErasing, which sets a box to 0
    after normalising (with dtype uint8: to the mean colour). mixup, cutmix: alpha of the Beta distribution by which
    pairs of samples are mixed; with both, each pair takes one of them by a coin flip. Raises ValueError for settings
    that cannot work.
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
        """Whether any operation on uint8 pixels is asked for."""
        return self.auto_augment is not None or self.jitters

    @property
    def jitters(self) -> bool:
        """Whether color_jitter asks for anything."""
        return self.color_jitter is not None and any(self.color_jitter)

    @property
    def mixes(self) -> bool:
        """Whether pairs of samples are mixed, and labels become soft targets."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def active(self) -> bool:
        """Whether anything is asked for at all."""
        return self.changes_pixels or self.erasing > 0 or self.mixes


NO_AUGMENTATIONS = Augmentations()


@dataclass(frozen=True, kw_only=True)
class ImagePipeline:
    """What one sample goes through, then what one batch goes through.

    Sample stage: crop window, antialiased bilinear resize to `size` (height, width in pixels), horizontal flip; uint8.
    Batch stage, on the target device: `augment`, where it asks for anything, and `(pixel / 255 - mean) / std` per
    channel.

    crop: "random_resized" draws area and aspect as torchvision's RandomResizedCrop does (`scale`, `ratio`), "center"
    takes the centre window of the target's aspect whose shorter side is `center_fraction` of the image's, "full"
    squeezes the whole image. flip: probability of a horizontal flip. exif: "ignore" leaves the pixels as stored
    (torchvision's choice), "apply" turns them upright first. resample: the resize kernel, "torch" or "pillow"
    (Pillow-SIMD where installed); they agree within one level. max_pixels: an image that declares more is refused
    before memory is allocated for it. Raises ValueError for settings that cannot work.
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
        """Whether any draw changes a sample: False means that every epoch serves the same pixels."""
        return self.crop == "random_resized" or self.flip > 0 or self.augment.active


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def imagenet_train(size: int | tuple[int, int] = 224, **settings: object) -> ImagePipeline:
    """RandomResizedCrop and a coin-flip mirror: the usual ImageNet training recipe. `size` in pixels.

    settings: fields of ImagePipeline and of Augmentations, such as auto_augment="rand" or mixup=0.2.
    """
    chosen = {field.name: settings.pop(field.name) for field in fields(Augmentations) if field.name in settings}
    if chosen:
        if "augment" in settings:
            raise ValueError(f"give augment, or {', '.join(chosen)}, not both")
        settings["augment"] = Augmentations(**chosen)  # type: ignore[arg-type]
    return ImagePipeline(size=_pair(size), **settings)  # type: ignore[arg-type]


def imagenet_eval(size: int | tuple[int, int] = 224, *, center_fraction: float = 0.875) -> ImagePipeline:
    """Centre crop with the field of view of `Resize(256), CenterCrop(224)`, no flip. `size` in pixels."""
    return ImagePipeline(size=_pair(size), crop="center", flip=0.0, center_fraction=center_fraction)
