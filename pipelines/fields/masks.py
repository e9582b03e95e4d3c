"""Decodes masks, and encodes them for a cache."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError

Mask = npt.NDArray[Any]
_ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B")  # Pillow's modes with one integer per pixel
_LOSSY = ("jpeg", "tiff_jpeg", "webp")  # compressions of TIFF
_TIFF_TAGS = {"bits": 258, "photometric": 262, "format": 339}
_UNSIGNED, _SIGNED = 1, 2  # formats of TIFF's samples
_SUBFILE, _SAMPLES, _REDUCED_OR_MASK = 254, 277, 1 | 4  # tags, and bits of the first
_PGM_HEADER = re.compile(rb"P[25](?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+\d+(?:\s|#[^\n]*\n)+(\d+)")  # the highest level


def encode_mask(mask: Mask) -> bytes:
    """Encode a mask, integers [h, w], as a file from which decode_mask reads the same values.

    The file is a PNG for values of 8 and 16 bits, otherwise a TIFF. Raises LoaderError E-UNSUPPORTED for other arrays.
    """
    from PIL import Image

    low, high = (int(mask.min()), int(mask.max())) if mask.size and mask.dtype.kind in "biu" else (0, -1)
    types = [
        kind for kind in (np.uint8, np.uint16, np.int32) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max
    ]
    if mask.ndim != 2 or high < low or not types:
        cause = f"a mask must be integers [height, width] of at most 32 bits, got {mask.dtype} {list(mask.shape)}"
        raise LoaderError("E-UNSUPPORTED", cause, fix="give each image a mask of its size")
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mask, types[0])).save(file, "TIFF" if types[0] is np.int32 else "PNG")
    return file.getvalue()


def decode_mask(data: bytes | Mask) -> Mask:
    """Return the values of a mask, integers [h, w]: palette indices, or grey levels numbered from 0.

    A grey image of 1, 2 or 4 bits has the values 0 to 1, 3 or 15; a PGM has the values in the file.

    Raises LoaderError E-CORRUPT; E-UNSUPPORTED for a mask of several channels, for a JPEG, which changes values, and
    for a TIFF that counts levels from white.
    """
    if isinstance(data, np.ndarray):
        return data
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode not in _ONE_CHANNEL or image.format == "JPEG" or image.info.get("compression") in _LOSSY:
                cause = f"a mask must have one channel and lossless coding, got {image.format} of mode {image.mode}"
                raise LoaderError("E-UNSUPPORTED", cause, fix="save masks as PNG, grey or with a palette")
            if image.format == "TIFF" and _has_more_bands(image):
                cause = "a mask must have one channel, got a TIFF of several bands or pages"
                raise LoaderError("E-UNSUPPORTED", cause, fix="save masks as PNG, grey or with a palette")
            if image.mode == "I" and data.startswith(b"MM") and image.info.get("compression") != "raw":
                cause = "a compressed big-endian TIFF of signed levels, whose byte order Pillow confuses"
                raise LoaderError("E-UNSUPPORTED", cause, fix="save masks as PNG, grey or with a palette")
            restore = _find_levels(image, data)
            values = np.asarray(image.convert("L") if image.mode == "1" else image)
            bits = image.mode == "1"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise LoaderError("E-CORRUPT", f"the mask cannot be decoded: {error}") from error
    return (values > 0).view(np.uint8) if bits else restore(values)


def _has_more_bands(image: Any) -> bool:
    """Return whether a TIFF has several samples per pixel, or pages of one size that are not overviews or masks."""
    if image.tag_v2.get(_SAMPLES, 1) > 1:
        return True
    size, pages = image.size, 0
    for frame in range(image.n_frames):
        image.seek(frame)
        pages += image.size == size and not image.tag_v2.get(_SUBFILE, 0) & _REDUCED_OR_MASK
    image.seek(0)
    return pages > 1


def _find_levels(image: Any, data: bytes) -> Callable[[Mask], Mask]:
    """Return a function that converts Pillow's levels of an open image back to the stored levels."""
    if image.format == "PNG":
        is_grey = len(data) > 25 and data[25] == 0
        return _of_few_bits(data[24]) if is_grey else np.asarray
    if image.format == "TIFF":
        return _find_tiff_levels({name: image.tag_v2.get(tag) for name, tag in _TIFF_TAGS.items()}, image.mode)
    header = _PGM_HEADER.match(data) if image.format == "PPM" else None
    highest = int(header[1]) if header else 0
    full = 255 if image.mode == "L" else 65535
    return np.asarray if highest in (0, full) else lambda values: (values * (highest / full)).round().astype(np.int32)


def _find_tiff_levels(tags: dict[str, Any], mode: str) -> Callable[[Mask], Mask]:
    bits, sample = ((tags[name] or (1,))[0] for name in ("bits", "format"))
    if tags["photometric"] == 0 and mode == "L":
        cause = "this TIFF counts levels from white (PhotometricInterpretation 0)"
        raise LoaderError("E-UNSUPPORTED", cause, fix="save masks as PNG, grey or with a palette")
    if (bits, sample) == (8, _SIGNED):
        return lambda values: values.view(np.int8)
    if (bits, sample) == (32, _UNSIGNED):
        return lambda values: values.view(np.uint32)
    return _of_few_bits(bits) if mode == "L" else np.asarray


def _of_few_bits(bits: int) -> Callable[[Mask], Mask]:
    """Return a function that undoes Pillow's scaling of levels of 2 or 4 bits."""
    step = {2: 85, 4: 17}.get(bits, 1)
    return np.asarray if step == 1 else lambda values: values // step
