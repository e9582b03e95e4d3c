"""Decoding by Pillow or Pillow-SIMD: ordinary JPEGs on request, every unusual image always."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import warnings
from collections.abc import Iterator

import numpy as np

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.jpeg import header as jpeg

try:
    import PIL
    from PIL import Image, ImageFile, UnidentifiedImageError
    from PIL.JpegImagePlugin import JpegImageFile
except ImportError as error:
    raise LoaderError(
        "E-DEPENDENCY", f"Pillow cannot be imported ({error})", fix="pip install pillow (or build pillow-simd)"
    ) from None

IS_SIMD = ".post" in PIL.__version__  # Pillow-SIMD numbers its releases as post releases of the Pillow it follows
_ORIENTATION_TAG = 0x0112
_lock = threading.RLock()  # warning filters and Pillow's switches belong to the whole process


@contextlib.contextmanager
def _our_rules() -> Iterator[None]:
    """Pillow without its own size limit (ours is checked before) and without warnings for metadata nobody asked for.

    And without LOAD_TRUNCATED_IMAGES, which the program around us may have set.
    """
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = limit, lenient


def _failure(error: BaseException) -> LoaderError:
    # the message about an unknown file names a memory address, which differs from run to run
    text = "not recognised" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
    if "truncated" in text.lower():
        return LoaderError("E-TRUNC", f"Pillow: {text}")
    if "not supported" in text.lower() or "unsupported" in text.lower():
        return LoaderError("E-UNSUPPORTED", f"Pillow: {text}")
    return LoaderError("E-CORRUPT", f"Pillow: {text}")


# What Pillow's plug-ins raise on damaged files; a MemoryError cannot come from a size, which was checked.
_DAMAGE = (OSError, SyntaxError, ValueError, IndexError, KeyError, TypeError, EOFError, struct.error, OverflowError)


def _as_rgb(image: Image.Image) -> Pixels:
    if image.mode.startswith("I;16") or image.mode == "I":
        # convert() would saturate 16-bit grey at 255 instead of scaling it
        grey = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


class PillowJpegDecoder:
    """Ordinary JPEGs by Pillow, its metadata parsing left out."""

    name = "pillow"
    warning = ""

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        """See JpegDecoder.rgb."""
        header = jpeg.parse_header(data)
        if (header.height, header.width) != (height, width):
            raise LoaderError("E-CORRUPT", f"{header.width}x{header.height} pixels declared, {width}x{height} expected")
        jpeg.check_markers(data, header)  # Pillow does not tell warnings, which would show whether it has to be done
        return any_jpeg(data, header)

    def version(self) -> str:
        """See JpegDecoder.version."""
        return f"{'Pillow-SIMD' if IS_SIMD else 'Pillow'} {PIL.__version__}"


def _checked(image: Image.Image, size: tuple[int, int]) -> Pixels:
    if image.size != size:
        raise LoaderError("E-CORRUPT", f"the {image.format} declares {size} and {image.size} pixels")
    return _as_rgb(image)


def any_jpeg(data: bytes, header: jpeg.JpegHeader) -> Pixels:
    """A JPEG, however unusual (CMYK, arithmetic coding, odd sampling): uint8 [height, width, 3]."""
    stripped = io.BytesIO(jpeg.strip_metadata(data, header))
    with _our_rules() if ImageFile.LOAD_TRUNCATED_IMAGES else contextlib.nullcontext():
        try:
            with JpegImageFile(stripped) as image:  # not Image.open: it applies MAX_IMAGE_PIXELS
                return _checked(image, (header.width, header.height))
        except _DAMAGE as error:
            raise _failure(error) from None


def any_image(data: bytes, kind: str, size: tuple[int, int]) -> Pixels:
    """A PNG, WebP, BMP or GIF of `size` (width, height), its first frame: uint8 [height, width, 3]."""
    with _our_rules():
        try:
            with Image.open(io.BytesIO(data), formats=(kind,)) as image:
                return _checked(image, size)
        except _DAMAGE as error:
            raise _failure(error) from None


def exif_orientation(payload: bytes) -> int:
    """The orientation tag (1 to 8) of an EXIF block; 1 if there is none or it is damaged."""
    with _our_rules():
        exif = Image.Exif()
        try:
            exif.load(payload)
            return int(exif.get(_ORIENTATION_TAG, 1))
        except _DAMAGE:
            return 1


def file_orientation(data: bytes, kind: str) -> int:
    """The orientation that a PNG, WebP, BMP or GIF carries; 1 if it has none."""
    with _our_rules():
        try:
            with Image.open(io.BytesIO(data), formats=(kind,)) as image:
                return int(image.getexif().get(_ORIENTATION_TAG, 1))
        except _DAMAGE:
            return 1
