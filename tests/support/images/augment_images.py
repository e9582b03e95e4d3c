"""Images of every kind for the augmentations, and Pillow's results for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.pipelines.plan.augmentations import Op

Images = npt.NDArray[np.uint8]


def images_of(number: int = 100, size: tuple[int, int] = (41, 56), seed: int = 0) -> Images:
    """uint8 [number, height, width, 3]: waves of colour with more or less noise, pure noise, flat and nearly flat."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    found = []
    for n in range(number):
        waves = [np.sin(x / (3 + n % 17) + n) * np.cos(y / (5 + c + n % 11)) for c in range(3)]
        pixels = 127 + np.stack(waves, -1) * draw.uniform(10, 130)
        pixels += draw.normal(0, draw.uniform(0, 40), pixels.shape) + draw.uniform(-70, 70)
        if n % 10 == 0:
            pixels = draw.integers(0, 256, pixels.shape)
        if n % 25 == 3:
            pixels[...] = n
        if n % 25 == 4:
            pixels[...] = (n, n + 1, 255 - n)
            pixels[0, 0] += 1
        found.append(np.clip(pixels, 0, 255).astype(np.uint8))
    return np.stack(found)


def plain_move(op: Op) -> Op:
    """Return the operation that moves pixels like `op`, without interpolation."""
    return Op((op - Op.SHEAR_X_BILINEAR) % 5 + Op.SHEAR_X) if op >= Op.SHEAR_X_BILINEAR else op


def values_of(op: Op, number: int = 100, seed: int = 1) -> npt.NDArray[np.float64]:
    """Return parameters over the whole range of `op`, including special values."""
    draw = np.random.default_rng(seed)
    u = draw.uniform(-1, 1, number)
    op, smooth = plain_move(op), op >= Op.SHEAR_X_BILINEAR
    if smooth and op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
        return u * 60
    if op is Op.BLUR:
        return np.append(np.geomspace(0.05, 10, number // 5), draw.uniform(0.1, 2.0, number - number // 5))
    if op is Op.SOLARIZE_ADD:
        return np.append(draw.integers(0, 111, number - 2), (0, 255)).astype(np.float64)
    if op in (Op.SHEAR_X, Op.SHEAR_Y):
        return u
    if op in (Op.TRANSLATE_X, Op.TRANSLATE_Y):
        return np.trunc(u * 60)
    if op is Op.ROTATE:
        u[:8] = np.array([0, 90, 180, 270, -90, 360, 45, -180]) / 360
        return u * 360
    if op is Op.POSTERIZE:
        return draw.integers(1, 9, number).astype(np.float64)
    if op is Op.SOLARIZE:
        return np.append(np.rint(draw.uniform(0, 256, number // 2)), draw.uniform(0, 256, number - number // 2))
    if op is Op.HUE:
        return np.append(u[3:] * 0.5, (-0.5, 0.0, 0.5))
    return np.append(1 + u[3:], (0.0, 1.0, 2.5))


def _affine(image: Image.Image, matrix: tuple[float, ...], **settings: Any) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, **settings)


def _turned(image: Image.Image, turn: float) -> Image.Image:
    """torchvision's adjust_hue on a PIL image."""
    hue, saturation, value = image.convert("HSV").split()
    shifted = np.asarray(hue) + np.int64(turn * 255).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(shifted), saturation, value)).convert("RGB")


PILLOW: dict[Op, Callable[[Image.Image, float], Image.Image]] = {
    Op.IDENTITY: lambda image, _: image,
    Op.BRIGHTNESS: lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    Op.COLOR: lambda image, v: ImageEnhance.Color(image).enhance(v),
    Op.CONTRAST: lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    Op.SHARPNESS: lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    Op.POSTERIZE: lambda image, v: ImageOps.posterize(image, int(v)),
    Op.SOLARIZE: ImageOps.solarize,  # type: ignore[dict-item]
    Op.AUTO_CONTRAST: lambda image, _: ImageOps.autocontrast(image),
    Op.EQUALIZE: lambda image, _: ImageOps.equalize(image),
    Op.HUE: _turned,
    Op.GRAYSCALE: lambda image, _: image.convert("L").convert("RGB"),
    Op.SOLARIZE_ADD: lambda image, v: image.point([min(255, i + int(v)) if i < 128 else i for i in range(256)] * 3),
    Op.BLUR: lambda image, v: image.filter(ImageFilter.GaussianBlur(v)),
}
_MOVES: dict[Op, Callable[..., Image.Image]] = {
    Op.SHEAR_X: lambda image, v, **settings: _affine(image, (1, v, 0, 0, 1, 0), **settings),
    Op.SHEAR_Y: lambda image, v, **settings: _affine(image, (1, 0, 0, v, 1, 0), **settings),
    Op.TRANSLATE_X: lambda image, v, **settings: _affine(image, (1, 0, -v, 0, 1, 0), **settings),
    Op.TRANSLATE_Y: lambda image, v, **settings: _affine(image, (1, 0, 0, 0, 1, -v), **settings),
    Op.ROTATE: lambda image, v, **settings: image.rotate(v, **settings),
}


def move_by_pillow(op: Op, image: Image.Image, value: float, fill: Any = (0, 0, 0)) -> Image.Image:
    """Apply one operation that moves pixels, by Pillow."""
    kernel = Image.Resampling.BICUBIC if op >= Op.SHEAR_X_BICUBIC else Image.Resampling.BILINEAR
    kernel = kernel if op >= Op.SHEAR_X_BILINEAR else Image.Resampling.NEAREST
    return _MOVES[plain_move(op)](image, value, resample=kernel, fillcolor=fill)


def by_pillow(op: Op, images: Images, values: npt.NDArray[np.float64]) -> Images:
    """Apply one operation to each image, by Pillow: uint8 [n, height, width, 3]."""
    apply = partial(move_by_pillow, op) if plain_move(op) in _MOVES else PILLOW[op]
    done = (apply(Image.fromarray(a), float(v)) for a, v in zip(images, values, strict=True))
    return np.stack([np.asarray(image) for image in done])


def share_off(found: torch.Tensor, expected: Images, *, levels: int = 0) -> float:
    """Return the share of values that differ by more than `levels`."""
    return float((np.abs(found.numpy().astype(int) - expected.astype(int)) > levels).mean())


class Calls(TorchDispatchMode):
    """Record the names of the torch operations that run in its context."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))
