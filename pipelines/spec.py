"""Settings of the two stages: `ImagePipeline` for crop, resize and normalisation, `Augmentations` for the rest."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

from penstock.pipelines.checked import checked_choice, checked_int, checked_number, checked_tuple, set_checked, shown

MAX_VIEWS = 256  # a number of 8 bits, next to one for the purpose of a draw
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_MAX_PIXELS = 100_000_000
RAND_BINS = 31  # number of magnitudes of torchvision's RandAugment and TrivialAugmentWide
_MAX_RAND_OPS = 16
_LARGEST_MOMENT = 4.0  # above any mean or std of pixels from 0 to 1, and below those of levels to 255


def _checked_interval(name: str, value: Any, highest: float | None = None) -> tuple[int | float, ...]:
    low, high = checked_tuple(name, value, ("low", "high"), partial(checked_number, high=highest, above=0))
    if low > high:
        raise ValueError(f"{name} must be (low, high) with low at most high, got {shown(value)}")
    return low, high


def _checked_channels(name: str, value: Any, above: float | None = None) -> tuple[int | float, ...]:
    channels = checked_tuple(name, value, ("red", "green", "blue"), partial(checked_number, above=above))
    if max(map(abs, channels)) > _LARGEST_MOMENT:
        raise ValueError(f"{name} must be on the scale from 0 to 1, got {shown(value)}: divide it by 255")
    return channels


@dataclass(frozen=True, kw_only=True)
class Augmentations:
    """Choose the augmentations of the batch stage, in the order in which they are applied; the defaults do nothing.

    Raises ValueError for settings that cannot work.

    Attributes:
        auto_augment: "rand" for torchvision's RandAugment, "trivial" for its TrivialAugmentWide.
        rand_ops: number of operations that RandAugment applies to each image, 1 to 16.
        rand_magnitude: magnitude of RandAugment's operations, 0 to 30.
        color_jitter: (brightness, contrast, saturation, hue) as for torchvision's ColorJitter, hue at most 0.5.
        erasing: probability of torchvision's RandomErasing, which sets a box to 0 after normalising (with dtype uint8:
            to the mean colour).
        mixup: alpha of the Beta distribution of the shares by which pairs of images are blended; 0 for no mixup.
        cutmix: the same for pairs that exchange a box; with both, a coin flip chooses for each pair.
    """

    auto_augment: Literal["rand", "trivial"] | None = None
    rand_ops: int = 2
    rand_magnitude: int = 9
    color_jitter: tuple[float, float, float, float] | None = None
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.auto_augment is not None:
            checked_choice("auto_augment", self.auto_augment, ("rand", "trivial"))
        jitter: Any = self.color_jitter
        if jitter is not None:
            check = partial(checked_number, low=0)
            jitter = checked_tuple("color_jitter", jitter, ("brightness", "contrast", "saturation", "hue"), check)
            checked_number("color_jitter (hue)", jitter[3], 0, 0.5)
        set_checked(
            self,
            rand_ops=checked_int("rand_ops", self.rand_ops, 1, _MAX_RAND_OPS),
            rand_magnitude=checked_int("rand_magnitude", self.rand_magnitude, 0, RAND_BINS - 1),
            color_jitter=jitter,
            erasing=checked_number("erasing, a probability,", self.erasing, 0, 1),
            mixup=checked_number("mixup", self.mixup, 0),
            cutmix=checked_number("cutmix", self.cutmix, 0),
        )

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
    """Configure the sample stage, which handles each image, and the batch stage, which handles each batch.

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
        max_pixels: an image that declares more pixels is rejected before memory is allocated for it.
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
        checked_choice("crop", self.crop, ("random_resized", "center", "full"))
        checked_choice("exif", self.exif, ("ignore", "apply"))
        checked_choice("resample", self.resample, ("torch", "pillow"))
        if not isinstance(self.augment, Augmentations):
            raise ValueError(f"augment must be an Augmentations, got {shown(self.augment)}")
        set_checked(
            self,
            size=checked_tuple("size", self.size, ("height", "width"), partial(checked_int, low=1, high=16384)),
            scale=_checked_interval("scale", self.scale, highest=1),
            ratio=_checked_interval("ratio", self.ratio),
            center_fraction=checked_number("center_fraction", self.center_fraction, high=1, above=0),
            flip=checked_number("flip, a probability,", self.flip, 0, 1),
            mean=_checked_channels("mean", self.mean),
            std=_checked_channels("std", self.std, above=0),
            max_pixels=checked_int("max_pixels", self.max_pixels, 1),
        )

    @property
    def random(self) -> bool:
        """Whether anything is drawn at random; if not, every epoch yields the same pixels."""
        return self.crop == "random_resized" or self.flip > 0 or self.augment.active


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, (tuple, list)) else (size, size)


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


_SAME_IN_VIEWS = ("exif", "resample", "max_pixels")  # settings of reading and decoding


def checked_views(pipeline: Any) -> tuple[ImagePipeline, ...]:
    """Return the pipeline of each view, imagenet_train() for None. Raises ValueError for what cannot work together."""
    views = pipeline if isinstance(pipeline, (list, tuple)) else (imagenet_train() if pipeline is None else pipeline,)
    for view in views:
        if not isinstance(view, ImagePipeline):
            name = getattr(view, "__name__", None)
            fix = f": call it, pipeline={name}()" if name and callable(view) else ""
            raise ValueError(f"pipeline must be an ImagePipeline, or one for each view, got {shown(view)}{fix}")
    if not 1 <= len(views) <= MAX_VIEWS:
        raise ValueError(f"pipeline must have 1 to {MAX_VIEWS} views, got {len(views)}")
    for name in _SAME_IN_VIEWS:
        if len({getattr(view, name) for view in views}) > 1:
            raise ValueError(f"{name} must be the same for all views, got {[getattr(view, name) for view in views]}")
    if len(views) > 1 and any(view.augment.mixes for view in views):
        raise ValueError("mixup and cutmix need a single view: they mix the labels too")
    return tuple(views)
