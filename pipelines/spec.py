"""Settings of the two stages: `ImagePipeline`, and the usual pipelines for training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from typing_extensions import Unpack

from penstock.pipelines.augmentations import NO_AUGMENTATIONS, Augmentations
from penstock.pipelines.image_types import INTERPOLATIONS, Interpolation
from penstock.pipelines.messages.channel_checks import checked_fill, checked_moments, keeps_channels
from penstock.pipelines.messages.checked import (
    checked_bool,
    checked_choice,
    checked_int,
    checked_interval,
    checked_number,
    checked_tuple,
    set_checked,
    shown,
)
from penstock.pipelines.messages.contradictions import refuse_contradictions
from penstock.pipelines.messages.foreign_names import refuse_unknown
from penstock.pipelines.pipeline_settings import Crop, EvaluationSettings, PipelineSettings

MAX_VIEWS = 256  # a view number has 8 bits, next to the bits for the purpose of a draw
IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Mean of red, green and blue over ImageNet's photos, on a scale from 0 to 1, as in torchvision."""
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Standard deviation of red, green and blue, on the same scale."""
DEFAULT_MAX_PIXELS = 100_000_000
_MAX_JITTER = 100.0  # relative to the scale at which an image fits
MAX_CHANNELS = 64
MAX_SIDE = 16384  # of an output image, in pixels


def _checked_fraction(value: Any) -> float | None:
    return None if value is None else checked_number("center_fraction", value, high=1, above=0)


def _checked_length(name: str, value: Any) -> int:
    return checked_int(name, value, 1, MAX_SIDE)


def _checked_side(value: Any) -> tuple[int, int] | None:
    """Return the lowest and highest length of the shorter side."""
    if value is None:
        return None
    sides = value if isinstance(value, (tuple, list)) else (value, value)
    low, high = checked_tuple("shorter_side", sides, ("low", "high"), _checked_length)
    if low > high:
        raise ValueError(f"shorter_side must be (low, high) with low at most high, got {shown(value)}")
    return low, high


CROPS: tuple[Crop, ...] = get_args(Crop)
_RANDOM_CROPS = ("random_resized", "random", "scale_jitter")


@dataclass(frozen=True, kw_only=True)
class ImagePipeline:
    """Settings of the sample stage, which handles each image, and the batch stage, which handles each batch.

    Sample stage, in whole levels: crop, antialiased resize to `size`, rotation, vertical and horizontal flip.
    Batch stage, on the target device: `augment`, then `(pixel / 255 - mean) / std` for each channel.
    Raises ValueError for settings that cannot work.

    Attributes:
        size: (height, width) of the resulting images, in pixels. None, with crop="full": images keep their own sizes,
            or are resized with their aspect by shorter_side and longer_side; batches have lists of [channels, height,
            width].
        crop: "random_resized" draws area and aspect as torchvision's RandomResizedCrop does; "center" uses the centre
            window that has the aspect of `size`; "full" resizes the whole image, whatever its aspect; "random" is
            torchvision's RandomCrop with pad_if_needed, after `shorter_side` and `padding`; "scale_jitter" is
            large-scale jitter, torchvision's ScaleJitter and FixedSizeCrop; "letterbox" fits the whole image into
            `size`, with its aspect; "five" and "ten" are torchvision's FiveCrop and TenCrop, one crop per view;
            "none" hands the whole image over to the `transform` of create_loader, which makes one size of all.
        scale: lowest and highest share of the image's area, for "random_resized".
        ratio: lowest and highest aspect (width / height) of the window, for "random_resized".
        center_fraction: side of the window, as a share of the largest that fits, for "center", "five" and "ten". None
            keeps the scale: the crops are `size` pixels of the image, as with torchvision's CenterCrop alone.
        shorter_side: length in pixels to which the shorter side is resized before the crop, as torchvision's Resize
            does, for "center", "five", "ten" and "random"; for "random", (low, high) draws it. None: no such resize,
            and "random" keeps the scale. With size=None: of the whole image.
        resize_first: resize the whole image, then cut the centre out of it, as the evaluations of torchvision, timm and
            Hugging Face do; for "center", "five", "ten", and with `center_fraction` for "full" and "letterbox". The
            image is resized for `size / center_fraction`, rounded down, or to shorter_side. Otherwise the crop is cut
            first, at whole pixels of the image, which differs by up to half a pixel.
        longer_side: length in pixels that the longer side has at most after a resize to shorter_side, as max_size of
            torchvision's Resize; alone, to which the longer side is resized. Only with size=None.
        padding: pixels added on each side before the crop, for "random"; less than each side of `size`.
        jitter: lowest and highest scale, relative to that of "letterbox", for "scale_jitter".
        align: position of an image that does not fill `size`, "center" or "top_left", for "letterbox" and
            "scale_jitter"; torchvision's scale jitter pads as with "top_left". "center_down", with resize_first: a
            centre between two pixels is rounded down, as by Hugging Face, not to the even one.
        fill: colour of areas outside the image: levels 0 to 255 of red, green and blue, or one level of grey. For other
            channels one level for each, or one for all; with depth=32 in the units of the images.
        rotate90: probability of a turn by 90, 180 or 270 degrees (equally likely): 0.75 makes all four orientations
            equally likely. Only for square sizes.
        vertical_flip: probability of a vertical flip.
        flip: probability of a horizontal flip.
        channels: 3, or 1 for grey images: resized in colour, then converted as Pillow's mode L, so that grey keeps its
            levels. Any other number up to 64 keeps the channels of the images as stored (TIFF, .npy, arrays, PNG with
            alpha): an image with another number of channels is a bad sample, and never converted.
        depth: bits per level, 8, 16 or 32. With 16, 16-bit images keep their levels, levels of 8-bit images are
            multiplied by 257, and floats are `(level / 65535 - mean) / std`. With 32, levels of all types become
            float32 with unchanged values, channels are kept as stored, and floats are `(level - mean) / std`.
        mean: mean of each channel (red, green, blue; one number for channels=1), on a scale from 0 to 1; with depth=32
            in the units of the images. channel_statistics computes it.
        std: standard deviation of each channel, on the same scale.
        exif: "ignore" leaves the pixels as stored (torchvision's choice), "apply" turns them upright first.
        interpolation: filter of the resize: "bilinear", "bicubic", "lanczos", "box", "nearest" (without antialiasing),
            or "random", which draws bilinear or bicubic for each image as timm does. Masks use the nearest pixel.
        resample: resize kernel, "torch" or "pillow" (Pillow-SIMD where installed); they agree within one level if
            bilinear.
        max_pixels: an image that declares more pixels is rejected before memory is allocated for it.
        max_output_pixels: with size=None, the memory of each image of a batch in pixels; an image that would have more
            is a bad sample. shorter_side and longer_side together limit images too.
        augment: augmentations beyond crop and flip.
    """

    size: tuple[int, int] | None = (224, 224)
    crop: Crop = "random_resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    center_fraction: float | None = 0.875
    shorter_side: int | tuple[int, int] | None = None
    resize_first: bool = False
    longer_side: int | None = None
    padding: int = 0
    jitter: tuple[float, float] = (0.1, 2.0)
    align: Literal["center", "top_left", "center_down"] = "center"
    fill: tuple[int | float, ...] = (0, 0, 0)
    rotate90: float = 0.0
    vertical_flip: float = 0.0
    flip: float = 0.5
    channels: int = 3
    depth: Literal[8, 16, 32] = 8
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    exif: Literal["ignore", "apply"] = "ignore"
    interpolation: Interpolation | Literal["random"] = "bilinear"
    resample: Literal["torch", "pillow"] = "torch"
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_output_pixels: int = 4_000_000
    augment: Augmentations = NO_AUGMENTATIONS

    def __post_init__(self) -> None:
        checked_choice("crop", self.crop, CROPS)
        checked_choice("align", self.align, ("center", "top_left", "center_down"))
        checked_choice("exif", self.exif, ("ignore", "apply"))
        checked_choice("interpolation", self.interpolation, (*INTERPOLATIONS, "random"))
        checked_choice("resample", self.resample, ("torch", "pillow"))
        channels = checked_int("channels", self.channels, 1, MAX_CHANNELS)
        if checked_int("depth", self.depth) not in (8, 16, 32):
            raise ValueError(f"depth must be 8, 16 or 32, got {self.depth}")
        if not isinstance(self.augment, Augmentations):
            raise ValueError(f"augment must be an Augmentations, got {shown(self.augment)}")
        probabilities = ("rotate90", "vertical_flip", "flip")
        set_checked(
            self,
            size=None if self.size is None else checked_tuple("size", self.size, ("height", "width"), _checked_length),
            scale=checked_interval("scale", self.scale, highest=1),
            ratio=checked_interval("ratio", self.ratio),
            center_fraction=_checked_fraction(self.center_fraction),
            shorter_side=_checked_side(self.shorter_side),
            resize_first=checked_bool("resize_first", self.resize_first),
            padding=checked_int("padding", self.padding, 0),
            jitter=checked_interval("jitter", self.jitter, highest=_MAX_JITTER),
            fill=checked_fill(self.fill, channels, self.depth),
            **{name: checked_number(f"{name}, a probability,", getattr(self, name), 0, 1) for name in probabilities},
            mean=checked_moments("mean", self.mean, channels, self.depth),
            std=checked_moments("std", self.std, channels, self.depth, above=0),
            max_pixels=checked_int("max_pixels", self.max_pixels, 1),
            longer_side=None if self.longer_side is None else _checked_length("longer_side", self.longer_side),
            max_output_pixels=checked_int("max_output_pixels", self.max_output_pixels, 1, MAX_SIDE**2),
        )
        refuse_contradictions(self)

    @property
    def output_size(self) -> tuple[int, int]:
        """The size of all images, which must not be None."""
        assert self.size is not None
        return self.size

    @property
    def has_own_scale(self) -> bool:
        """Whether whole images are served without a resize."""
        return self.size is None and self.shorter_side is None and self.longer_side is None

    @property
    def most_pixels(self) -> int:
        """Number of pixels for which each image of a batch has memory."""
        if self.size is not None:
            return self.size[0] * self.size[1]
        limit = self.shorter_side_range[0] * (self.longer_side or 0) or (self.longer_side or MAX_SIDE) ** 2
        return min(self.max_output_pixels, limit)

    @property
    def random(self) -> bool:
        """Whether anything is drawn at random; if not, every epoch yields the same pixels."""
        drawn = self.flip > 0 or self.vertical_flip > 0 or self.rotate90 > 0
        return drawn or self.crop in _RANDOM_CROPS or self.interpolation == "random" or self.augment.active

    def evaluation(
        self, size: int | tuple[int, int] | None = None, **changes: Unpack[EvaluationSettings]
    ) -> ImagePipeline:
        """Return the pipeline that evaluates a model trained with this one; it is not random.

        It has the same size, channels, depth, mean, std, EXIF handling, interpolation ("bicubic" for "random"),
        resample and max_pixels, and no flips, turns and augmentations. Its crop follows from this one:

        - "random_resized": "center" with this pipeline's `center_fraction`, 0.875 unless set;
        - "random": "center", with `shorter_side` the geometric mean of its range, or at the same scale without one;
        - "scale_jitter": "letterbox", with the same `align` and `fill`;
        - others stay as they are.

        `size` is one side or (height, width); a `shorter_side` of this pipeline grows to it. `changes` are settings of
        imagenet_eval: evaluation(288, center_fraction=1.0). Raises TypeError and ValueError as imagenet_eval does.
        """
        settings = {name: getattr(self, name) for name in _KEPT}
        settings["size"] = self.size if size is None else size
        crop = changes.get("crop", _EVALUATION_OF.get(self.crop, self.crop))
        if self.interpolation == "random":
            settings["interpolation"] = "bicubic"
        for name, crops in (("align", ("letterbox",)), ("fill", ("letterbox", "center", "five", "ten"))):
            if crop in crops:
                settings[name] = getattr(self, name)
        if self.resize_first and crop == self.crop:
            settings |= {name: getattr(self, name) for name in ("resize_first", "align", "center_fraction")}
        if settings["size"] is None:
            settings |= {name: getattr(self, name) for name in ("shorter_side", "longer_side", "max_output_pixels")}
        if crop in ("center", "five", "ten"):
            low, high = self.shorter_side_range
            shortest = 0 if size is None or not low else max(_pair(size) or (0,))
            if "center_fraction" not in changes:
                settings["shorter_side"] = max(round((low * high) ** 0.5), shortest) or None
            keeps_scale = self.crop == "random" and not low
            settings["center_fraction"] = None if keeps_scale else self.center_fraction
        return _evaluation("evaluation", {**settings, "crop": crop, **changes})

    @property
    def shorter_side_range(self) -> tuple[int, int]:
        """Lowest and highest length of the shorter side; (0, 0) without such a resize."""
        assert not isinstance(self.shorter_side, int)  # __post_init__ has converted it to a range
        return self.shorter_side or (0, 0)

    @property
    def is_plain(self) -> bool:
        """Whether images are colour crops that fill the output and are not turned: all decoders can make these."""
        placed = self.crop not in ("random_resized", "center", "full") or self.shorter_side is not None
        placed = placed or self.resize_first or (self.crop == "center" and self.center_fraction is None)
        plain = (self.channels, self.depth) == (3, 8) and self.interpolation in ("bilinear", "bicubic", "random")
        return plain and self.size is not None and not placed and not self.vertical_flip and not self.rotate90

    @property
    def keeps_channels(self) -> bool:
        """Whether images keep their channels as stored; if not, grey and colour are converted to `channels`."""
        return keeps_channels(self.channels, self.depth)

    @property
    def keeps_scale(self) -> bool:
        """Whether crops are pixels of the image, without a resize."""
        is_cut = self.crop == "random" or (self.crop in ("center", "five", "ten") and self.center_fraction is None)
        return is_cut and self.shorter_side is None

    @property
    def num_views(self) -> int:
        """Number of crops that the setting `crop` makes of each image, one per view."""
        return {"five": 5, "ten": 10}.get(self.crop, 1)

    @property
    def sample_dtype(self) -> type[np.uint8] | type[np.uint16] | type[np.float32]:
        """Type of a level as the sample stage writes it."""
        found: type[np.uint8] | type[np.uint16] | type[np.float32] = _TYPES[self.depth]
        return found


_TYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.float32}
_OF_IMAGES = tuple(field.name for field in fields(ImagePipeline))
_EVALUATED = ("size", *EvaluationSettings.__annotations__)
# Settings of a pipeline that its evaluation has too, whatever their crops.
_KEPT = ("size", "channels", "depth", "mean", "std", "exif", "interpolation", "resample", "max_pixels")
# The crop that shows at evaluation what another crop shows on average; others are not random and stay.
_EVALUATION_OF: dict[str, Crop] = {"random_resized": "center", "random": "center", "scale_jitter": "letterbox"}
PIPELINE_SETTINGS = (*_OF_IMAGES, *(field.name for field in fields(Augmentations)))


def _pair(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    return size if size is None or isinstance(size, (tuple, list)) else (size, size)


def imagenet_train(size: int | tuple[int, int] = 224, **settings: Unpack[PipelineSettings]) -> ImagePipeline:
    """Return the usual pipeline for training on ImageNet: RandomResizedCrop and a flip with probability 1/2.

    `size` is in pixels, one side or (height, width); `settings` are fields of ImagePipeline and of Augmentations, such
    as flip=0.0, auto_augment="rand" or mixup=0.2. Raises TypeError for an unknown setting, and as ImagePipeline does.
    """
    given: dict[str, Any] = {**settings}
    chosen = {field.name: given.pop(field.name) for field in fields(Augmentations) if field.name in given}
    if chosen:
        if "augment" in given:
            raise ValueError(f"pass either augment, or {', '.join(chosen)}, not both")
        given["augment"] = Augmentations(**chosen)
    refuse_unknown("imagenet_train", [name for name in given if name not in _OF_IMAGES], PIPELINE_SETTINGS)
    return ImagePipeline(size=_pair(size), **given)


def imagenet_eval(size: int | tuple[int, int] = 224, **settings: Unpack[EvaluationSettings]) -> ImagePipeline:
    """Return the usual pipeline for evaluation: a centre crop with the field of view of `Resize(256), CenterCrop(224)`.

    `size` is in pixels, one side or (height, width); nothing is flipped. `settings` are fields of ImagePipeline that
    have a place in an evaluation, such as center_fraction=0.95, mean=, std= or interpolation="bicubic". Raises
    TypeError for any other setting, ValueError for a crop or an interpolation that is drawn, and as ImagePipeline does.
    """
    return _evaluation("imagenet_eval", {"crop": "center", **settings, "size": size})


def _evaluation(function: str, settings: dict[str, Any]) -> ImagePipeline:
    refuse_unknown(function, [name for name in settings if name not in _EVALUATED], _EVALUATED)
    pipeline = ImagePipeline(**{**settings, "size": _pair(settings["size"]), "flip": 0.0})
    if pipeline.random:
        drawn = "interpolation" if pipeline.interpolation == "random" else "crop"
        raise ValueError(f"{drawn} must not be random in an evaluation, got {shown(settings[drawn])}")
    return pipeline


_SAME_IN_VIEWS = ("exif", "resample", "max_pixels", "channels", "depth", "fill")  # one call makes all views


def checked_views(pipeline: Any) -> tuple[ImagePipeline, ...]:
    """Return the pipeline of each view, imagenet_train() for None. Raises ValueError for incompatible views."""
    one = imagenet_train() if pipeline is None else pipeline
    if isinstance(one, tuple) and hasattr(one, "evaluation"):
        raise ValueError("for_timm and for_hugging_face return (train, evaluation): pass one of them as pipeline=")
    views: tuple[Any, ...] = tuple(pipeline) if isinstance(pipeline, (list, tuple)) else (one,)
    for number, view in enumerate(views):
        if not isinstance(view, ImagePipeline):
            if isinstance(view, (list, tuple)):  # such as [simclr()] * 2
                fix = "simclr() and dino() return one: pass it alone, or join sequences by +"
                raise ValueError(f"pipeline[{number}] is already a sequence of {len(view)} views: {fix}")
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
    if len(views) == 1:
        views *= views[0].num_views
    elif any(view.num_views > 1 for view in views):
        raise ValueError("crop must not be 'five' or 'ten' in a sequence of views: these crops define views themselves")
    found: tuple[ImagePipeline, ...] = views
    return found
