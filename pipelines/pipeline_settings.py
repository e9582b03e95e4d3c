"""Settings of pipelines, as imagenet_train and the presets take them: fields of ImagePipeline and Augmentations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from penstock.pipelines.augmentations import Augmentations
from penstock.pipelines.image_types import Interpolation

Crop = Literal["random_resized", "center", "full", "random", "scale_jitter", "letterbox", "five", "ten", "none"]


class PipelineSettings(TypedDict, total=False):
    """Settings of imagenet_train and of the presets, for functions of your own that pass them on.

    Each is described in help(ImagePipeline) or help(Augmentations).
    """

    crop: Crop
    scale: tuple[float, float]
    ratio: tuple[float, float]
    center_fraction: float | None
    shorter_side: int | tuple[int, int] | None
    resize_first: bool
    longer_side: int | None
    padding: int
    jitter: tuple[float, float]
    align: Literal["center", "top_left", "center_down"]
    fill: float | Sequence[float]
    rotate90: float
    vertical_flip: float
    flip: float
    channels: int
    depth: Literal[8, 16, 32]
    mean: float | Sequence[float]
    std: float | Sequence[float]
    exif: Literal["ignore", "apply"]
    interpolation: Interpolation | Literal["random"]
    resample: Literal["torch", "pillow"]
    max_pixels: int
    max_output_pixels: int
    augment: Augmentations
    auto_augment: Literal["rand", "trivial", "timm"] | None
    rand_ops: int
    rand_magnitude: int
    rand_magnitude_std: float
    three_augment: bool
    color_jitter: tuple[float, float, float, float] | None
    color_jitter_probability: float
    grayscale: float
    blur: float
    blur_sigma: tuple[float, float]
    solarize: float
    solarize_threshold: int
    erasing: float
    mixup: float
    cutmix: float


class EvaluationSettings(TypedDict, total=False):
    """Settings of imagenet_eval and of ImagePipeline.evaluation, for functions of your own that pass them on."""

    crop: Literal["center", "full", "letterbox", "five", "ten", "none"]
    center_fraction: float | None
    shorter_side: int | None
    resize_first: bool
    longer_side: int | None
    align: Literal["center", "top_left", "center_down"]
    fill: float | Sequence[float]
    channels: int
    depth: Literal[8, 16, 32]
    mean: float | Sequence[float]
    std: float | Sequence[float]
    exif: Literal["ignore", "apply"]
    interpolation: Interpolation
    resample: Literal["torch", "pillow"]
    max_pixels: int
    max_output_pixels: int
