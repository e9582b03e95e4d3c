"""Images of Pillow for transforms that ask for them, such as torchvision's, and their results."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from penstock.loaders.make.own.compose_fields import WrongResultError
from penstock.pipelines.image_types import Levels

# First steps of torchvision's transforms that convert arrays; all others need a Pillow image or a tensor.
_TAKE_ARRAYS = ("ToPILImage", "ToTensor", "ToImage", "ToImageTensor", "Lambda")
_CHANNELS = {1: "L", 3: "RGB"}  # modes of Pillow images, by the channels of an image


def first_step(transform: Any) -> Any:
    """Return the first of the steps of a transform that composes others, or the transform itself."""
    steps = getattr(transform, "transforms", None)
    if isinstance(steps, (list, tuple)) and steps:
        return first_step(steps[0])
    return transform


def asks_for_pillow(transform: object) -> bool:
    """Return whether the first step of a transform is torchvision's and does not convert arrays.

    Some of these steps leave an array unchanged without an error, so a trial cannot tell.
    """
    first = first_step(transform)
    return is_torchvision(first) and type(first).__name__ not in _TAKE_ARRAYS


def is_torchvision(transform: object) -> bool:
    """Return whether a transform is from torchvision, by the modules of its classes, without an import."""
    return any(base.__module__.partition(".")[0] == "torchvision" for base in type(transform).__mro__)


def can_be_pillow(image: Levels) -> bool:
    """Return whether an image, [height, width, channels], can become a Pillow image."""
    return image.dtype == np.uint8 and image.shape[2] in _CHANNELS and importlib.util.find_spec("PIL") is not None


def as_pillow(image: Levels) -> Any:
    """Return uint8 [height, width, 3 or 1] as a Pillow image of mode RGB or L."""
    from PIL import Image

    return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


def from_pillow(result: Any, channels: int) -> Any:
    """Return a Pillow image as uint8 [height, width, channels], 3 or 1, and any other object unchanged.

    Raises WrongResultError for an image of another mode than RGB or L.
    """
    if not hasattr(result, "getbands"):
        return result
    if result.mode != _CHANNELS.get(channels):
        wanted = _CHANNELS.get(channels, "RGB")
        raise WrongResultError(f"transform must return Pillow images of mode {wanted}, got {result.mode}")
    return np.asarray(result).reshape(*result.size[::-1], channels)
