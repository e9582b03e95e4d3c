"""Synthetic photos: JPEGs with the statistics of ImageNet photos; every crop shows the class."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import simplejpeg
from numpy.typing import NDArray

Plane = NDArray[np.float32]

# Brightness pattern -> directions (x, y) of its waves.
_SLANT = math.sqrt(0.5)
PATTERNS: dict[str, tuple[tuple[float, float], ...]] = {
    "horizontal": ((0, 1),),
    "vertical": ((1, 0),),
    "diagonal": ((_SLANT, _SLANT),),
    "plaid": ((1, 0), (0, 1)),
    "plain": (),
}
TILE = 1024  # side of a periodic texture in pixels: photos are not larger, so that none repeats within a frame


@lru_cache(maxsize=2)
def texture_bank(seed: int) -> dict[str, Plane]:
    """Return the textures of all photos of one seed: name -> float32 [TILE, TILE], unit deviation.

    Photos have amplitude spectra near 1/f (Field 1987; 1/f^1.27 in a sample of ImageNet) but are not Gaussian noise:
    they have soft light, flat regions with sharp borders, and fine detail. Hence the three kinds of texture.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0x7E57]))
    smooth, fine = _noise(rng, 1.9), _noise(rng, 1.0)
    return {"smooth": smooth, "edges": np.tanh(12 * smooth), "fine": fine}


def _noise(rng: np.random.Generator, slope: float) -> Plane:
    """Draw periodic noise with amplitudes proportional to frequency^-slope."""
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None, :]) * TILE
    # A tile spans about two frames: slower waves would only shift the mean of a photo.
    amplitude = np.where(frequency < 2, 0, np.maximum(frequency, 1) ** -slope)
    phase = np.exp(2j * np.pi * rng.random(frequency.shape))
    texture = np.fft.irfft2(amplitude * phase, (TILE, TILE))
    scaled: Plane = (texture / texture.std()).astype(np.float32)
    return scaled


def class_name(label: int) -> str:
    """Return the folder name of a class; sorted bytewise, up to 10,000 folders are in the order of their labels."""
    return f"{label:04d}_{_pattern_name(label)}_{_hue_degrees(label):03.0f}"


def _pattern_name(label: int) -> str:
    return list(PATTERNS)[label % len(PATTERNS)]


def _hue_degrees(label: int) -> float:
    """Return the hue of the colour cast: opposite colours first, then intermediate ones (van der Corput)."""
    rank, step, turn = label // len(PATTERNS), 0.5, 0.0
    while rank:
        turn += step * (rank & 1)
        rank, step = rank >> 1, step / 2
    return (40 + 360 * turn) % 360


def photo_bytes(seed: int, split: int, label: int, number: int) -> bytes:
    """Return the JPEG of one photo: a pure function of its arguments. Mean 110 kB."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, split, label, number]))
    height, width = _frame_size(rng)
    # Measured on 200 ImageNet photos: 4 of 5 are 4:4:4 at quality 96, the others 4:2:0 below 90.
    quality, subsampling = (96, "444") if rng.random() < 0.79 else (int(rng.integers(68, 90)), "420")
    pixels = photo_pixels(rng, texture_bank(seed), label, height, width)
    return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", subsampling))


def _frame_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width in pixels: most longer sides are 500, aspects are those of cameras, one in five upright."""
    fate = rng.random()
    longer = 500 if fate < 0.72 else int(rng.integers(160, 500) if fate < 0.88 else rng.integers(520, TILE))
    aspect = (4 / 3, 4 / 3, 3 / 2, rng.uniform(1, 1.6))[int(rng.integers(4))]
    shorter = round(longer / aspect)
    return (longer, shorter) if rng.random() < 0.22 else (shorter, longer)


def photo_pixels(
    rng: np.random.Generator, bank: dict[str, Plane], label: int, height: int, width: int
) -> NDArray[np.uint8]:
    """Return the pixels of one photo, uint8 [height, width, 3] RGB; `height` and `width` up to TILE.

    The class is visible as the brightness pattern and as the hue of the colour cast. Both survive mirroring, and
    crops of a tenth of the area still contain two periods of the pattern. Amounts are in levels of 255.
    """

    def cut(name: str, amount: float) -> Plane:
        return _window(rng, bank[name], height, width) * np.float32(amount)

    hue = _hue_degrees(label)
    mean = 118 + 12 * rng.standard_normal()
    luma = np.float32(mean) + cut("smooth", 36) + cut("edges", rng.uniform(12, 28))
    luma += cut("fine", 14.5 * math.exp(0.7 * rng.standard_normal()))
    luma += _pattern(rng, label, cut("smooth", 0.12)) * np.float32(rng.uniform(22, 34))

    angle, strength = math.radians(hue + rng.uniform(-20, 20)), rng.uniform(12, 24)
    blue = np.float32(-strength * math.sin(angle)) + cut("smooth", 8)
    red = np.float32(strength * math.cos(angle)) + cut("smooth", 8)
    pixels = np.empty((height, width, 3), np.uint8)
    channels = (luma + 1.402 * red, luma - 0.344 * blue - 0.714 * red, luma + 1.772 * blue)  # ITU-R BT.601
    for index, channel in enumerate(channels):
        pixels[..., index] = np.clip(channel, 0, 255)
    return pixels


def _window(rng: np.random.Generator, texture: Plane, height: int, width: int) -> Plane:
    """Cut a window out of a periodic texture at a random position, mirrored half of the time."""
    top, left = (int(v) for v in rng.integers(TILE, size=2))
    rows, columns = (top + np.arange(height)) % TILE, (left + np.arange(width)) % TILE
    if rng.random() < 0.5:
        columns = columns[::-1]
    return texture.take(rows, axis=0).take(columns, axis=1)


def _pattern(rng: np.random.Generator, label: int, bend: Plane) -> Plane:
    """Draw the pattern of a class: about -1 to 1, 7 to 11 periods per shorter side; `bend` shifts its lines."""
    height, width = bend.shape
    per_pixel = rng.uniform(7, 11) / min(height, width) * rng.choice([-1, 1])
    y, x = np.arange(height, dtype=np.float32)[:, None], np.arange(width, dtype=np.float32)[None, :]
    directions = PATTERNS[_pattern_name(label)]
    drawn = np.zeros_like(bend)
    for along_x, along_y in directions:
        turns = x * np.float32(along_x * abs(per_pixel)) + y * np.float32(along_y * per_pixel)
        drawn += np.sin(np.float32(2 * math.pi) * (turns + bend + np.float32(rng.random())))
    return drawn if len(directions) < 2 else drawn * np.float32(0.7)


def plain_photo(height: int, width: int, seed: int = 0) -> bytes:
    """Return a JPEG of waves and noise, 4:2:0, quality 90, with about the decode time of a photo.

    Unlike a demo photo it does not show a class and is fast to make. Its bytes depend only on the arguments.
    """
    rng = np.random.default_rng(seed)
    rows, columns = np.linspace(0, 20, height)[:, None, None], np.linspace(0, 20, width)[None, :, None]
    waves = np.sin(rows + np.arange(3) + seed) * np.cos(columns) * 90 + 128
    pixels = (waves + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 90, "RGB", "420")
    return data
