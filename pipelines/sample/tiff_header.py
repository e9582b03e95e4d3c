"""The first directory of a TIFF file: size, levels and orientation of its image, and the end of its pixels.

TIFF 6.0, sections 2 and 8. BigTIFF is not supported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError

MAGICS = (b"II*\0", b"MM\0*")
_WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLES, _SAMPLE_FORMAT = 256, 257, 258, 274, 277, 339
_SUBFILE, _PHOTOMETRIC, _PLANAR, _EXTRA = 254, 262, 284, 338
_GREYS, _RGB, _SEPARATE, _UNSPECIFIED = (0, 1), 2, 2, 0  # values of photometric, planar and extra samples
_REDUCED_OR_MASK = 1 | 4  # bits of a subfile's type
_PARTS = ((273, 279), (324, 325))  # tags for offsets and lengths: of strips, of tiles
_TYPES = {1: "u1", 3: "u2", 4: "u4"}  # BYTE, SHORT, LONG
_UNSIGNED, _USUAL_BITS = 1, (1, 2, 4, 8, 16)
_MAX_PAGES = 64  # that are looked at


class TiffHeader(NamedTuple):
    """Contents of the first directory.

    Attributes:
        width: width of the stored image, in pixels.
        height: height of the stored image, in pixels.
        bits: bits per level.
        samples: levels per pixel.
        end: end of the last strip or tile, in bytes; 0 if not given.
        orientation_at: offset of the stored orientation, in bytes; 0 for none.
    """

    width: int
    height: int
    bits: int
    samples: int
    end: int
    orientation_at: int


def read_tiff(data: bytes) -> TiffHeader:
    """Read the header.

    Raises LoaderError E-TRUNC, E-CORRUPT, or E-UNSUPPORTED for levels that Pillow does not decode as 8 or 16 bits: it
    scales 1, 2 and 4 bits, and inverts those that count from white, but not levels of 10, 12 or 14 bits, or of 16.
    """
    try:
        values, places, _ = _read_directory(data, 4)
    except (struct.error, ValueError):
        raise LoaderError("E-TRUNC", "the file ends inside its TIFF header") from None
    if not {_WIDTH, _HEIGHT} <= set(values):
        raise LoaderError("E-CORRUPT", "the TIFF does not declare a size")
    bits, samples, form = (int(values[tag].max()) if tag in values else 1 for tag in (_BITS, _SAMPLES, _SAMPLE_FORMAT))
    counts_from_white = bits == 16 and _one(values, _PHOTOMETRIC, 1) == 0
    if bits not in _USUAL_BITS or form != _UNSIGNED or counts_from_white:
        kind = {2: "signed", 3: "float"}.get(form, "unsigned")
        cause = f"the TIFF has {kind} levels of {bits} bits" + ", which count from white" * counts_from_white
        fix = "convert it to levels of 8 or 16 bits that count from black, or serve its levels with depth=32"
        raise LoaderError("E-UNSUPPORTED", cause, fix=fix)
    parts = [pair for pair in _PARTS if set(pair) <= set(values)]
    ends = [_find_end(values[offsets], values[lengths]) for offsets, lengths in parts]
    width, height = int(values[_WIDTH][0]), int(values[_HEIGHT][0])
    return TiffHeader(width, height, bits, samples, max(ends, default=0), places.get(_ORIENTATION, 0))


def is_wide_tiff(data: bytes) -> bool:
    """Return whether a file is a TIFF with levels that read_tiff refuses, such as floats, signed ones, or 12 bits."""
    if not data.startswith(MAGICS):
        return False
    try:
        read_tiff(data)
    except LoaderError as error:
        return error.code == "E-UNSUPPORTED"
    return False


def has_separate_bands(data: bytes) -> bool:
    """Return whether a file is a TIFF with channels that are not a colour: Pillow would return some of them, or none.

    These are grey levels with other samples than alpha, several grey pages of one size, and planes of 16 bits.
    """
    if not data.startswith(MAGICS):
        return False
    try:
        values, _, following = _read_directory(data, 4)
        samples, planar, kind = (_one(values, tag, 1) for tag in (_SAMPLES, _PLANAR, _PHOTOMETRIC))
        if kind in _GREYS and samples == 1:
            return any(_is_another_page(values, page) for page in _following_pages(data, following))
        if planar == _SEPARATE and _one(values, _BITS, 1) > 8:
            return True
        if kind in _GREYS:
            return samples > 2 or _one(values, _EXTRA, _UNSPECIFIED) == _UNSPECIFIED
        return kind == _RGB and not 3 <= samples <= 4
    except (struct.error, ValueError, LoaderError):
        return False  # read_tiff reports it


_TAGS = {_WIDTH, _HEIGHT, _BITS, _ORIENTATION, _SAMPLES, _SAMPLE_FORMAT, *(tag for pair in _PARTS for tag in pair)}
_TAGS |= {_SUBFILE, _PHOTOMETRIC, _PLANAR, _EXTRA}
Values = dict[int, npt.NDArray[np.uint64]]


def _read_directory(data: bytes, pointer: int) -> tuple[Values, dict[int, int], int]:
    """Return values and their offsets by tag, and the offset of the pointer to the next directory.

    Raises struct.error or ValueError beyond the end of the data, and LoaderError.
    """
    order = "<" if data.startswith(b"II") else ">"
    values: Values = {}
    places: dict[int, int] = {}
    (directory,) = struct.unpack_from(f"{order}I", data, pointer)
    (count,) = struct.unpack_from(f"{order}H", data, directory)
    end = directory + 2 + 12 * count
    for at in range(directory + 2, end, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", data, at)
        struct.unpack_from("4s", data, at + 8)
        if tag in _TAGS and kind in _TYPES:
            values[tag], places[tag] = _read_values(data, at + 8, order, _TYPES[kind], number)
    return values, places, end


def _following_pages(data: bytes, pointer: int) -> Iterator[Values]:
    """Yield the next directories, at most _MAX_PAGES."""
    for _ in range(_MAX_PAGES):
        if len(data) < pointer + 4 or data[pointer : pointer + 4] == b"\0\0\0\0":
            return
        values, _, pointer = _read_directory(data, pointer)
        yield values


def _is_another_page(first: Values, page: Values) -> bool:
    if _one(page, _SUBFILE, 0) & _REDUCED_OR_MASK or _one(page, _SAMPLES, 1) != 1:
        return False
    return all(_one(page, tag, 0) == _one(first, tag, 0) for tag in (_WIDTH, _HEIGHT))


def _one(values: Values, tag: int, default: int) -> int:
    return int(values[tag][0]) if tag in values else default


def _read_values(data: bytes, at: int, order: str, kind: str, number: int) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the values of an entry, and their offset. Raises ValueError if they lie beyond the end of the data."""
    if number == 0:
        raise LoaderError("E-CORRUPT", "the TIFF has an entry without a value")
    if number * np.dtype(order + kind).itemsize > 4:
        (at,) = struct.unpack_from(f"{order}I", data, at)
    return np.frombuffer(data, order + kind, number, at).astype(np.uint64), at


def _find_end(offsets: npt.NDArray[np.uint64], lengths: npt.NDArray[np.uint64]) -> int:
    if len(offsets) != len(lengths):
        raise LoaderError("E-CORRUPT", f"the TIFF has {len(offsets)} strips or tiles, but {len(lengths)} lengths")
    return int((offsets + lengths).max())


def without_orientation(data: bytes) -> bytes:
    """Return the file with its image declared upright, so that Pillow returns the pixels as stored."""
    at = read_tiff(data).orientation_at
    upright = b"\1\0" if data.startswith(b"II") else b"\0\1"
    return data if at == 0 or data[at : at + 2] == upright else b"".join((data[:at], upright, data[at + 2 :]))
