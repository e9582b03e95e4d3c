"""Settings of pipelines that are valid alone but not together."""

from __future__ import annotations

from typing import Any

# Settings that only some crops use; with other crops they raise, since they would do nothing.
_CROPS_OF_SETTING = {
    "padding": ("random",),
    "shorter_side": ("random", "center", "five", "ten", "full"),
    "align": ("scale_jitter", "letterbox"),
    "resize_first": ("center", "five", "ten", "full", "letterbox"),
}


def refuse_contradictions(pipeline: Any) -> None:
    """Raise ValueError for settings of an ImagePipeline that are valid alone but not together."""
    for name, crops in _CROPS_OF_SETTING.items():
        is_set = getattr(pipeline, name) not in (getattr(type(pipeline), name), "center_down")
        if pipeline.crop not in crops and is_set:
            raise ValueError(f"{name} is for crop={' or '.join(map(repr, crops))}, got crop={pipeline.crop!r}")
    if pipeline.align == "center_down" and not (pipeline.resize_first and pipeline.crop in ("center", "full")):
        got = f"got crop={pipeline.crop!r}, resize_first={pipeline.resize_first}"
        raise ValueError(f"align='center_down' is for crop='center' or 'full' with resize_first=True, {got}")
    if pipeline.resize_first and pipeline.crop in ("full", "letterbox") and pipeline.center_fraction is None:
        raise ValueError(
            f"center_fraction must be a number for crop={pipeline.crop!r} with resize_first=True, got None"
        )
    if pipeline.size is None:
        _refuse_for_own_sizes(pipeline)
    elif pipeline.longer_side is not None or (pipeline.crop == "full" and pipeline.shorter_side is not None):
        name = "shorter_side" if pipeline.longer_side is None else "longer_side"
        raise ValueError(f"{name} keeps the aspect of whole images: pass size=None, got size={pipeline.size}")
    elif pipeline.padding >= min(pipeline.size):
        raise ValueError(f"padding must be less than each side of size={pipeline.size}, got {pipeline.padding}")
    shortest, longest = pipeline.shorter_side_range
    if pipeline.crop != "random" and shortest != longest:
        raise ValueError(f"shorter_side must be one number for crop={pipeline.crop!r}, got {pipeline.shorter_side}")
    if pipeline.rotate90 and (pipeline.size is None or pipeline.size[0] != pipeline.size[1]):
        raise ValueError(f"rotate90 needs a square size, got {pipeline.size}")
    if pipeline.crop == "none" and (pipeline.flip or pipeline.vertical_flip or pipeline.rotate90):
        raise ValueError(
            "crop='none' leaves flips and turns to your transform: pass flip=0, vertical_flip=0, rotate90=0"
        )
    if pipeline.crop == "ten" and pipeline.flip:
        raise ValueError(f"flip must be 0 for crop='ten', which mirrors half of its crops, got {pipeline.flip}")
    if pipeline.depth != 8 and pipeline.resample == "pillow":
        raise ValueError(f"resample must be 'torch' with depth={pipeline.depth}, got 'pillow', which resizes 8 bits")
    if pipeline.keeps_channels and pipeline.resample == "pillow":
        raise ValueError(f"resample must be 'torch' with channels={pipeline.channels}, got 'pillow'")
    if pipeline.depth != 8 and pipeline.augment.changes_pixels:
        raise ValueError(f"depth must be 8 for augmentations that work on levels 0 to 255, got {pipeline.depth}")
    if pipeline.keeps_channels and pipeline.augment.of_colour:
        names, fix = ", ".join(pipeline.augment.of_colour), "blur, solarize, erasing, mixup and cutmix work with any"
        raise ValueError(f"channels must be 3 for augmentations of colours ({names}), got {pipeline.channels}: {fix}")
    jitter = pipeline.augment.color_jitter or (0, 0, 0, 0)
    if pipeline.channels == 1 and (jitter[2] or jitter[3]):
        raise ValueError(f"color_jitter must have saturation and hue 0 with channels=1, got {jitter}")


def _refuse_for_own_sizes(pipeline: Any) -> None:
    if pipeline.crop != "full":
        raise ValueError(f"size=None serves whole images: pass crop='full', got crop={pipeline.crop!r}")
    if pipeline.augment.active:
        raise ValueError("augment needs images of one size: augmentations cannot be combined with size=None")
    if pipeline.resize_first:
        raise ValueError("resize_first cuts one size out of all images: it cannot be combined with size=None")
    shortest, _ = pipeline.shorter_side_range
    if pipeline.longer_side is not None and shortest > pipeline.longer_side:
        raise ValueError(f"longer_side must be at least shorter_side={shortest}, got {pipeline.longer_side}")
