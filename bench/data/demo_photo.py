"""Made-up photos: JPEGs with the statistics of ImageNet photos, whose class can be seen in any crop of them."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from penstock.pipelines.errors import LoaderError

if TYPE_CHECKING:
    from types import ModuleType

PATTERNS = ("horizontal", "vertical", "diagonal", "plaid", "plain")
ODD_KINDS = ("progressive", "grey", "cmyk", "rotated", "png", "restart", "tiny")
ODD_EVERY = 91  # one photo in so many is odd; with 7 or more classes of 64 photos each kind occurs
# Side of a periodic texture in pixels: no photo is larger, so that none repeats within a frame.
TILE = 1024
# Textures are int16 with this many steps per standard deviation: a tenth of the memory traffic of float64.
FIXED_POINT = 4096
# An EXIF block with nothing but orientation 3, upside down. The patterns look alike from both ends, so that the class
# can be seen whether a loader applies the orientation or not.
EXIF_UPSIDE_DOWN = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0\0\0\0\0"

Texture = NDArray[np.int16]
Plane = NDArray[np.float32]


@dataclass(frozen=True)
class TextureBank:
    """Hold periodic textures, int16 [TILE, TILE], zero mean and unit deviation in FIXED_POINT.

    Attributes:
        smooth: soft light and shadow.
        edges: flat regions with sharp borders.
        fine: fine detail.
        activity: how much detail there is in a place, positive.
        sine: one turn of a sine, float32 [FIXED_POINT].
    """

    smooth: tuple[Texture, ...]
    edges: tuple[Texture, ...]
    fine: tuple[Texture, ...]
    activity: tuple[Texture, ...]
    sine: Plane


@lru_cache(maxsize=2)
def texture_bank(seed: int) -> TextureBank:
    """Return the textures that all photos of one seed are mixed from (0.3 s, 24 MB).

    Photos have amplitude spectra near 1/f (Field 1987; 1/f^1.27 in a sample of ImageNet) but are no Gaussian noise:
    they have flat regions with sharp borders, and detail in some places only. Hence four kinds of texture.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, 0x7E57]))
    smooth = [_noise(rng, 1.9) for _ in range(3)]
    return TextureBank(
        smooth=tuple(_fixed(t) for t in smooth),
        edges=tuple(_fixed(np.tanh(12 * t)) for t in smooth),
        fine=tuple(_fixed(_noise(rng, 1.0)) for _ in range(3)),
        activity=tuple(_fixed(np.exp(0.8 * t - 0.32)) for t in smooth),
        sine=np.sin(np.arange(FIXED_POINT) * (2 * np.pi / FIXED_POINT)).astype(np.float32),
    )


def _noise(rng: np.random.Generator, slope: float) -> NDArray[np.float64]:
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None, :]) * TILE
    # A tile spans about two frames: slower waves would only shift the mean of a photo.
    amplitude = np.where(frequency < 2, 0, np.maximum(frequency, 1) ** -slope)
    phase = np.exp(2j * np.pi * rng.random(frequency.shape))
    texture = np.fft.irfft2(amplitude * phase, (TILE, TILE))
    scaled: NDArray[np.float64] = texture / texture.std()
    return scaled


def _fixed(texture: NDArray[np.float64]) -> Texture:
    return np.clip(np.rint(texture * FIXED_POINT), -32767, 32767).astype(np.int16)


def class_name(label: int) -> str:
    """Return the folder of a class; folders sorted bytewise are in the order of the labels (up to 10,000)."""
    return f"{label:04d}_{PATTERNS[label % len(PATTERNS)]}_{_hue_degrees(label):03.0f}"


def _hue_degrees(label: int) -> float:
    """Return the hue of the colour cast: opposite colours first, then those between (van der Corput)."""
    rank, step, turn = label // len(PATTERNS), 0.5, 0.0
    while rank:
        turn += step * (rank & 1)
        rank, step = rank >> 1, step / 2
    return (40 + 360 * turn) % 360


def odd_kind(label: int, number: int) -> str | None:
    """Return which of ODD_KINDS photo `number` of a class is; None for the ordinary ones."""
    if (number + 9 * label) % ODD_EVERY:
        return None
    return ODD_KINDS[number // 9 % len(ODD_KINDS)]


def photo_bytes(seed: int, split: int, label: int, number: int) -> bytes:
    """Return the encoded file of one photo: a pure function of its arguments. Mean 110 kB.

    Raises LoaderError E-DEPENDENCY for an odd one if Pillow is missing.
    """
    rng = np.random.default_rng(np.random.SeedSequence([seed, split, label, number]))
    height, width = _frame_size(rng)
    # Measured on 200 ImageNet photos: 4 of 5 are 4:4:4 at quality 96, the others 4:2:0 below 90, none progressive.
    full_chroma = rng.random() < 0.79
    quality = 96 if full_chroma else int(rng.integers(68, 90))
    kind = odd_kind(label, number)
    if kind == "tiny":
        height, width = 48, 64
    elif kind == "png":  # lossless, three times the bytes: a smaller frame keeps the mean file size
        height, width = 240, 320
    pixels = photo_pixels(rng, texture_bank(seed), label, height, width)
    if kind is None:
        subsampling = "444" if full_chroma else "420"
        return bytes(simplejpeg.encode_jpeg(pixels, quality, "RGB", subsampling))
    return _odd_bytes(pixels, kind)


def _frame_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width in pixels: the longer side is 500 for most, aspects as of cameras, one in five upright."""
    fate = rng.random()
    longer = 500 if fate < 0.72 else int(rng.integers(160, 500) if fate < 0.88 else rng.integers(520, TILE))
    aspect = (4 / 3, 4 / 3, 3 / 2, rng.uniform(1, 1.6))[int(rng.integers(4))]
    shorter = round(longer / aspect)
    return (longer, shorter) if rng.random() < 0.22 else (shorter, longer)


def photo_pixels(rng: np.random.Generator, bank: TextureBank, label: int, height: int, width: int) -> NDArray[np.uint8]:
    """Return the pixels of one photo, uint8 [height, width, 3] RGB; `height` and `width` up to TILE.

    The class shows twice: as the pattern of brightness and as the hue of the colour cast. Both survive mirroring, and
    crops of a tenth of the area still hold two periods of the pattern. Amounts are in levels of 255.
    """

    def cut(textures: tuple[Texture, ...]) -> Plane:
        return _window(rng, textures, height, width)

    def factor(low: float, high: float) -> Plane:
        return np.asarray(rng.uniform(low, high), np.float32)

    hue = _hue_degrees(label)
    # Brightness leans with the hue, so that a grey photo is not without a hint.
    mean = np.float32(118 + 10 * math.cos(math.radians(hue - 40)) + 12 * rng.standard_normal())
    detail = np.float32(13 * math.exp(0.7 * rng.standard_normal()))
    luma = mean + 36 * cut(bank.smooth) + factor(12, 28) * cut(bank.edges)
    luma += detail * cut(bank.activity) * cut(bank.fine)
    luma += factor(22, 34) * _pattern(rng, bank, label, cut(bank.smooth))

    angle, strength = math.radians(hue + rng.uniform(-20, 20)), rng.uniform(12, 24)
    blue = np.float32(-strength * math.sin(angle)) + 8 * cut(bank.smooth) + 2 * cut(bank.fine)
    red = np.float32(strength * math.cos(angle)) + 8 * cut(bank.smooth) + 2 * cut(bank.fine)
    pixels = np.empty((height, width, 3), np.uint8)
    channels = (luma + 1.402 * red, luma - 0.344 * blue - 0.714 * red, luma + 1.772 * blue)  # ITU-R BT.601
    for index, channel in enumerate(channels):
        pixels[..., index] = np.clip(channel, 0, 255)
    return pixels


def _window(rng: np.random.Generator, textures: tuple[Texture, ...], height: int, width: int) -> Plane:
    texture = textures[int(rng.integers(len(textures)))]
    top, left = (int(v) for v in rng.integers(TILE, size=2))
    rows, columns = (top + np.arange(height)) % TILE, (left + np.arange(width)) % TILE
    if rng.random() < 0.5:
        columns = columns[::-1]
    window: Plane = texture.take(rows, axis=0).take(columns, axis=1) * np.float32(1 / FIXED_POINT)
    return window


def _pattern(rng: np.random.Generator, bank: TextureBank, label: int, warp: Plane) -> Plane:
    """Draw the pattern of a class, about -1 to 1, 7 to 11 periods per shorter side; `warp` bends its lines."""
    height, width = warp.shape
    per_pixel = np.float32(rng.uniform(7, 11) / min(height, width))
    y = np.arange(height, dtype=np.float32)[:, None] * per_pixel
    x = np.arange(width, dtype=np.float32)[None, :] * per_pixel
    lean = np.float32(rng.choice([-1, 1]) * math.sqrt(0.5))
    start, other_start = rng.random(2).astype(np.float32)
    bend = np.float32(0.12) * warp + start

    def wave(turns: Plane) -> Plane:
        sine: Plane = bank.sine[(turns * FIXED_POINT).astype(np.int32) & (FIXED_POINT - 1)]
        return sine

    name = PATTERNS[label % len(PATTERNS)]
    if name == "horizontal":
        return wave(y + bend)
    if name == "vertical":
        return wave(x + bend)
    if name == "diagonal":
        return wave(x * np.float32(math.sqrt(0.5)) + y * lean + bend)
    if name == "plaid":
        plaid: Plane = (wave(x + bend) + wave(y + bend + other_start)) * np.float32(0.7)
        return plaid
    return np.zeros_like(warp)


def _odd_bytes(pixels: NDArray[np.uint8], kind: str) -> bytes:
    image = require_pillow().fromarray(pixels)
    options: dict[str, Any] = {"format": "JPEG", "quality": 92}
    if kind == "progressive":
        options["progressive"] = True
    elif kind == "grey":
        image = image.convert("L")
    elif kind == "cmyk":
        image = image.convert("CMYK")
    elif kind == "rotated":
        options["exif"] = EXIF_UPSIDE_DOWN
    elif kind == "png":
        options = {"format": "PNG", "compress_level": 1}
    elif kind == "restart":
        options["restart_marker_rows"] = 1
    file = io.BytesIO()
    image.save(file, **options)
    return file.getvalue()


def require_pillow() -> ModuleType:
    """Return `PIL.Image`. Raises LoaderError E-DEPENDENCY if neither Pillow nor Pillow-SIMD is installed."""
    try:
        from PIL import Image
    except ImportError as error:
        fix = "pip install pillow"
        raise LoaderError("E-DEPENDENCY", f"the demo set needs Pillow for its odd images: {error}", fix=fix) from error
    return Image


def plain_photo(height: int, width: int, seed: int = 0) -> bytes:
    """Return a JPEG of waves and noise, 4:2:0, quality 90, which takes about as long to decode as a photo.

    Unlike a demo photo it shows no class and is made at once. Its bytes depend on the arguments only.
    """
    rng = np.random.default_rng(seed)
    rows, columns = np.linspace(0, 20, height)[:, None, None], np.linspace(0, 20, width)[None, :, None]
    waves = np.sin(rows + np.arange(3) + seed) * np.cos(columns) * 90 + 128
    pixels = (waves + rng.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 90, "RGB", "420")
    return data
