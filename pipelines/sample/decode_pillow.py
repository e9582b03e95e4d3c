"""Decodes with Pillow or Pillow-SIMD: all unusual images, and ordinary JPEGs if this decoder is chosen."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Levels, Pixels
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.sample.decode_bands import Bands
from penstock.pipelines.sample.tiff_header import without_orientation

try:
    import PIL
    from PIL import Image, ImageFile, UnidentifiedImageError
    from PIL.JpegImagePlugin import JpegImageFile
except ImportError as error:
    raise LoaderError(
        "E-DEPENDENCY", f"Pillow cannot be imported ({error})", fix="pip install pillow (or build pillow-simd)"
    ) from None

IS_SIMD = ".post" in PIL.__version__  # Pillow-SIMD numbers its releases as post releases of the Pillow it follows
_ORIENTATION_TAG, _BITS_TAG, _SAMPLE_FORMAT_TAG = 274, 258, 339
_BAND_PIXELS = 4_000_000  # pixels of a large image that are converted per step
_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_WARNING_MODULES = rf"PIL\.|{re.escape(__name__)}$"  # modules of Pillow's warnings
_lock = threading.RLock()  # warning filters and Pillow's settings belong to the whole process


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Switch off Pillow's size limit (ours was checked before) and its warnings about metadata, which is not used.

    LOAD_TRUNCATED_IMAGES is switched off too, because the user's program may have set it.
    """
    with _lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=_WARNING_MODULES)  # other warnings may come from the program's threads
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = limit, lenient


def _failure(error: BaseException) -> LoaderError:
    # Pillow's message about an unknown file contains a memory address, which differs between runs.
    text = "not recognised" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
    if "truncated" in text.lower():
        return LoaderError("E-TRUNC", f"Pillow: {text}")
    if "not supported" in text.lower() or "unsupported" in text.lower():
        return LoaderError("E-UNSUPPORTED", f"Pillow: {text}")
    return LoaderError("E-CORRUPT", f"Pillow: {text}")


# Errors that Pillow's plug-ins raise for damaged files. Not MemoryError: the size was checked, so the file is not to
# blame.
_DAMAGE = (OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError, struct.error, OverflowError)


def _convert_to_rgb(image: Image.Image) -> Pixels:
    """Convert an image; a large image in bands, otherwise it would be in memory four times (100 megapixels: 1.3 GB)."""
    width, height = image.size
    rows = max(1, _BAND_PIXELS // width)
    if rows >= height:
        return _convert_band(image)
    pixels = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, rows):
        bottom = min(top + rows, height)
        pixels[top:bottom] = _convert_band(image.crop((0, top, width, bottom)))
    return pixels


def _convert_band(image: Image.Image) -> Pixels:
    if image.mode.startswith("I;16") or image.mode == "I":
        # convert() would clip 16-bit grey at 255 instead of scaling it.
        grey = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


class PillowJpegDecoder:
    """Decode ordinary JPEGs with Pillow, without parsing metadata (implements JpegDecoder)."""

    name = "pillow"
    warning = None

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        header = jpeg.parse_header(data)
        if (header.height, header.width) != (height, width):
            raise LoaderError("E-CORRUPT", f"{header.width}x{header.height} pixels declared, {width}x{height} expected")
        return decode_any_jpeg(data, header)

    def version(self) -> str:
        return f"{'Pillow-SIMD' if IS_SIMD else 'Pillow'} {PIL.__version__}"


def _convert_checked(image: Image.Image, size: tuple[int, int]) -> Pixels:
    if image.size != size:
        raise LoaderError("E-CORRUPT", f"the {image.format} declares {size} and {image.size} pixels")
    return _convert_to_rgb(image)


def decode_any_jpeg(data: bytes, header: jpeg.JpegHeader) -> Pixels:
    """Decode any JPEG, including CMYK, arithmetic coding and unusual sampling, to uint8 [height, width, 3]."""
    stripped = io.BytesIO(jpeg.strip_metadata(data, header))
    with _own_settings() if ImageFile.LOAD_TRUNCATED_IMAGES else contextlib.nullcontext():
        try:
            with JpegImageFile(stripped) as image:  # not Image.open, which applies MAX_IMAGE_PIXELS
                return _convert_checked(image, (header.width, header.height))
        except _DAMAGE as error:
            raise _failure(error) from None


def decode_any_image(data: bytes, kind: str, size: tuple[int, int], *, deep: bool = False) -> Levels:
    """Decode the first frame of a PNG, WebP, BMP, GIF or TIFF of `size` (width, height) to uint8 [height, width, 3].

    deep: the file has levels of 16 bits, which are kept: uint16. Raises LoaderError E-UNSUPPORTED for rare layouts.
    """
    if deep:
        levels = decode_stored(data, kind, size, deep=True)
        return levels[:, :, :3] if levels.shape[2] > 2 else np.repeat(levels[:, :, :1], 3, axis=2)
    data = without_orientation(data) if kind == "TIFF" else data
    with _own_settings():
        try:
            with Image.open(io.BytesIO(data), formats=(kind,)) as image:
                return _convert_checked(image, size)
        except _DAMAGE as error:
            raise _failure(error) from None


def decode_stored(data: bytes, kind: str, size: tuple[int, int], *, deep: bool) -> Levels:
    """Decode as decode_any_image does, but with the channels of the file: [height, width, channels]; alpha is kept."""
    data = without_orientation(data) if kind == "TIFF" else data
    with _own_settings():
        try:
            with Image.open(io.BytesIO(data), formats=(kind,)) as image:
                if image.size != size:
                    raise LoaderError("E-CORRUPT", f"the {kind} declares {size} and {image.size} pixels")
                if deep:
                    return _decode_deep(image, data, kind)
                mode = {"1": "L", "PA": "RGBA"}.get(image.mode, image.mode)
                pixels = np.asarray(image.convert(mode if mode in ("L", "LA", "RGBA") else "RGB"))
                return pixels[:, :, None] if pixels.ndim == 2 else pixels
        except _DAMAGE as error:
            raise _failure(error) from None


def read_wide_tiff(data: bytes, max_pixels: int) -> Bands | None:
    """Return a TIFF of one channel and floats or 32 bits per level; None if Pillow does not read it, or reads it wrong.

    It confuses the byte order of compressed big-endian levels, and levels of 32 bits are signed. Raises LoaderError.
    """
    with _own_settings():
        try:
            with Image.open(io.BytesIO(data), formats=("TIFF",)) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise LoaderError("E-BOMB", f"{width}x{height} pixels declared, max_pixels is {max_pixels}")
                is_swapped = data.startswith(b"MM") and image.info.get("compression") != "raw"
                if image.mode not in ("F", "I") or is_swapped or image.getexif().get(_ORIENTATION_TAG, 1) != 1:
                    return None
                values = np.asarray(image)
                levels = (values.view(np.uint32) if _has_32_unsigned_bits(image) else values)[:, :, None]
                return Bands(width, height, 1, levels.dtype, 1, lambda: levels)
        except UnidentifiedImageError:
            return None
        except _DAMAGE as error:
            raise _failure(error) from None


def _has_32_unsigned_bits(tiff: Any) -> bool:
    return (tiff.tag_v2.get(_BITS_TAG), tiff.tag_v2.get(_SAMPLE_FORMAT_TAG, (1,))) == ((32,), (1,))


def _decode_deep(image: ImageFile.ImageFile, data: bytes, kind: str) -> Levels:
    """Decode an open image with 16 bits to uint16 [height, width, channels], with alpha if it has it.

    Pillow does not have a mode for 16-bit colour: it keeps the upper bytes of levels. So the lower bytes are decoded as
    the upper bytes of the opposite byte order.
    """
    layout = _layout_of(image)
    if image.mode.startswith("I"):
        return np.asarray(image).astype(np.uint16)[:, :, None]
    if layout == "LA;16B":  # two levels of 16 bits are read as four of 8
        parts = _read_as(image, "RGBA").astype(np.uint16)
        return parts[:, :, ::2] << 8 | parts[:, :, 1::2]
    if layout[:-1] in ("RGB;16", "RGBA;16", "RGBX;16"):
        with Image.open(io.BytesIO(data), formats=(kind,)) as again:
            lower = _read_as(again, layout[:-1] + _OTHER_ORDER[layout[-1]])
        return np.asarray(image).astype(np.uint16) << 8 | lower
    raise LoaderError("E-UNSUPPORTED", f"a {kind} of 16 bits with the layout {layout}: convert it to grey or RGB")


def _layout_of(image: ImageFile.ImageFile) -> str:
    args: Any = image.tile[0].args
    return str(args if isinstance(args, str) else args[0])


def _read_as(image: ImageFile.ImageFile, layout: str) -> Pixels:
    """Decode an image with its samples interpreted in Pillow's raw mode `layout`."""
    tiles: list[Any] = image.tile
    image.tile = [
        tile._replace(args=layout if isinstance(tile.args, str) else (layout, *tile.args[1:])) for tile in tiles
    ]
    return np.asarray(image)


def read_exif_orientation(payload: bytes) -> int:
    """Return the orientation tag of an EXIF block; 1 if there is none or the block is damaged."""
    with _own_settings():
        exif = Image.Exif()
        try:
            exif.load(payload)
            return int(exif.get(_ORIENTATION_TAG, 1))
        except _DAMAGE:
            return 1


def read_file_orientation(data: bytes, kind: str) -> int:
    """Return the EXIF orientation of a PNG, WebP, BMP, GIF or TIFF; 1 if it has none."""
    with _own_settings():
        try:
            with Image.open(io.BytesIO(data), formats=(kind,)) as image:
                return int(image.getexif().get(_ORIENTATION_TAG, 1))
        except _DAMAGE:
            return 1
