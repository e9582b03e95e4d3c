"""Decodes images with their channels and levels as stored: TIFF, .npy, stacks of files, and the other formats.

A TIFF has the channels of its samples per pixel, contiguous or planar, in strips or tiles; a file of several pages has
those of all pages, without overviews and masks. A .npy file is [height, width], [height, width, channels] or [channels,
height, width]. Of the other formats, grey has 1 channel, grey with alpha 2, colour 3 and colour with alpha 4; palettes
are resolved. A stack is several files of one sample, see pack_stack: its channels are those of all files.
"""

from __future__ import annotations

import io
import logging
import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Levels
from penstock.pipelines.sample.tiff_header import MAGICS, has_separate_bands
from penstock.pipelines.spec import MAX_CHANNELS

_NPY, _STACK = b"\x93NUMPY", b"penstock stack\n"
_BIG_TIFFS = (b"II+\0", b"MM\0+")
_NPY_PARTS = (rb"'descr': *'([<>|=]?[a-zA-Z?]\d*)'", rb"'fortran_order': *(True|False)", rb"'shape': *\(([\d, ]*)\)")
_ORIENTATION, _REDUCED, _MASK = 274, 1, 4  # a tag, and bits of NewSubfileType
_INSTALL = "pip install tifffile imagecodecs (the extra penstock-loader[tiff])"


class Bands(NamedTuple):
    """An image that is not decoded yet.

    Attributes:
        width: width of the stored image, in pixels.
        height: height of the stored image, in pixels.
        channels: number of its channels; 0 if only decoding shows it.
        dtype: type of its levels.
        exif: orientation of the stored image, 1 to 8; 0 for files of a stack that differ in it.
        decode: returns the levels, [height, width, channels].
        likely_channels: number of channels for messages, if it differs because an array is perhaps [channels, height,
            width]; otherwise 0.
    """

    width: int
    height: int
    channels: int
    dtype: np.dtype[Any]
    exif: int
    decode: Callable[[], Levels]
    likely_channels: int = 0

    def orientation(self, *, applies: bool) -> int:
        """Return the orientation, 1 to 8; 1 if it is different. Raises LoaderError in that case if it `applies`."""
        if self.exif == 0 and applies:
            cause = "the files of the stack have different EXIF orientations"
            raise LoaderError("E-UNSUPPORTED", cause, fix="turn all upright, or pass ImagePipeline(exif='ignore')")
        return self.exif or 1


def is_only_bands(data: bytes) -> bool:
    """Return whether a file is an array, a stack or a TIFF of bands, which are decoded here for every pipeline."""
    return data.startswith((_NPY, _STACK)) or has_separate_bands(data)


def read_bands(data: bytes, channels: int, others: Callable[[bytes], Bands]) -> Bands:
    """Read the header of a file.

    channels: the expected number, which decides how an array [c, height, width] is read; 0 if it is unknown. others:
    reads JPEG, PNG and other formats. Raises LoaderError E-TRUNC, E-CORRUPT, E-UNSUPPORTED; E-DEPENDENCY without
    tifffile.
    """
    if data.startswith(_STACK):
        return _read_stack(data, channels, others)
    if data.startswith(_NPY):
        return _read_npy(data, channels)
    return _read_tiff(data) if data.startswith((*MAGICS, *_BIG_TIFFS)) else others(data)


def pack_stack(files: Sequence[bytes]) -> bytes:
    """Return the files of one sample as one sequence of bytes, which read_bands reads."""
    sizes = struct.pack(f"<I{len(files)}Q", len(files), *map(len, files))
    return b"".join((_STACK, sizes, *files))


def unpack_stack(data: bytes) -> list[bytes]:
    """Return the files of a stack. Raises LoaderError E-TRUNC, E-CORRUPT."""
    start = len(_STACK) + 4
    try:
        (count,) = struct.unpack_from("<I", data, len(_STACK))
        if not 1 <= count <= MAX_CHANNELS:
            raise LoaderError("E-CORRUPT", f"the stack declares {count:,} files")
        sizes = struct.unpack_from(f"<{count}Q", data, start)
    except struct.error:
        raise LoaderError("E-TRUNC", "the file ends inside its stack header") from None
    ends = np.cumsum([start + 8 * count, *sizes], dtype=object).tolist()
    if ends[-1] != len(data):
        raise LoaderError("E-TRUNC", f"the stack declares {ends[-1]:,} bytes and has {len(data):,}")
    return [data[begin:end] for begin, end in pairwise(ends)]


def pack_array(levels: Levels) -> bytes:
    """Return levels [height, width, channels] as a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(levels), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _read_stack(data: bytes, channels: int, others: Callable[[bytes], Bands]) -> Bands:
    files = unpack_stack(data)
    if any(file.startswith(_STACK) for file in files):
        raise LoaderError("E-CORRUPT", "the stack contains a stack")
    found = []
    for number, file in enumerate(files, 1):
        try:
            found.append(read_bands(file, 1, others))
        except LoaderError as error:
            cause = f"file {number} of the stack: {error.cause}"
            raise LoaderError(error.code, cause, fix=error.fix) from None
    first = found[0]
    for number, each in enumerate(found):
        if (each.width, each.height) != (first.width, first.height):
            sizes = f"{first.width}x{first.height} and {each.width}x{each.height}"
            cause = f"the first file and file {number + 1} of the stack have different sizes: {sizes}"
            raise LoaderError("E-UNSUPPORTED", cause, fix="resample the bands to one size")
    counts = [each.channels for each in found]

    def decode() -> Levels:
        parts = [each.decode() for each in found]
        return np.concatenate(parts, 2)

    total, dtype = (sum(counts) if all(counts) else 0), np.result_type(*(each.dtype for each in found))
    if any(each.dtype != dtype for each in found):
        names = ", ".join(sorted({str(each.dtype) for each in found}))
        raise LoaderError("E-UNSUPPORTED", f"the files of the stack have levels of several types: {names}")
    exif = first.exif if all(each.exif == first.exif for each in found) else 0
    return Bands(first.width, first.height, total, dtype, exif, decode)


def _read_npy(data: bytes, channels: int) -> Bands:
    shape, is_fortran, dtype, start = _read_npy_header(data)
    if len(shape) not in (2, 3) or min(shape) < 1:
        cause = f"the .npy file has the shape {list(shape)}"
        fix = "save one image per file, [height, width, channels]; or np.load it and pass (images, labels)"
        raise LoaderError("E-UNSUPPORTED", cause, fix=fix)
    _check_type(dtype, ".npy file")
    num_bytes = math.prod(shape) * dtype.itemsize
    if len(data) - start < num_bytes:
        raise LoaderError("E-TRUNC", f"the .npy file declares {num_bytes:,} bytes and has {len(data) - start:,}")
    is_first = len(shape) == 3 and shape[2] != channels and shape[0] == channels
    height, width = shape[1:] if is_first else shape[:2]
    count = 1 if len(shape) == 2 else shape[0] if is_first else shape[2]

    def decode() -> Levels:
        flat = np.frombuffer(data, dtype, math.prod(shape), start)
        levels = flat.reshape(shape, order="F" if is_fortran else "C")
        levels = levels[:, :, None] if levels.ndim == 2 else levels.transpose(1, 2, 0) if is_first else levels
        return levels.astype(dtype.newbyteorder("="), copy=False)

    # If no axis has the expected number, the channels are most likely the first axis of an array like [4, 120, 160].
    likely = shape[0] if count != channels and 2 * shape[0] <= min(width, count) else 0
    return Bands(width, height, count, dtype.newbyteorder("="), 1, decode, likely)


def _read_npy_header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether the order is Fortran's, type, and where the levels begin. Raises LoaderError.

    numpy's own function parses the header as a Python literal, which fails at random in threads of Python 3.11.
    """
    if len(data) < 12:
        raise LoaderError("E-TRUNC", "the file ends inside its .npy header")
    size = 2 if data[6:7] == b"\1" else 4  # of the header's length
    start = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    header = data[8 + size : start]
    found = [re.search(pattern, header) for pattern in _NPY_PARTS]
    if not 1 <= data[6] <= 3 or len(data) < start or None in found:
        raise LoaderError("E-CORRUPT" if len(data) >= start else "E-TRUNC", "the .npy file has no complete header")
    kind, order, shape = (part[1] for part in found if part is not None)
    sides = tuple(int(side) for side in shape.split(b",") if side.strip())
    try:
        return sides, order == b"True", np.dtype(kind.decode("ascii")), start
    except TypeError:
        raise LoaderError("E-CORRUPT", f"the .npy file has levels of an unknown type, {kind.decode()}") from None


def _read_tiff(data: bytes) -> Bands:
    with _open_tiff(data) as file:
        pages = list(_pages(file))
        first = pages[0]
        height, width, dtype = int(first.imagelength), int(first.imagewidth), first.dtype
        for page in pages:
            _check_page(page, first, len(data))
        samples = int(first.samplesperpixel)
        tag = first.tags.get(_ORIENTATION)
        exif = int(tag.value) if tag is not None and tag.value in range(1, 9) else 1

    def decode() -> Levels:
        with _open_tiff(data) as file:
            parts = [_decode_page(page, (height, width, samples)) for page in _pages(file)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, 2)

    return Bands(width, height, samples * len(pages), np.dtype(dtype).newbyteorder("="), exif, decode)


class _open_tiff:
    """Open a TIFF; errors of the package become a LoaderError."""

    def __init__(self, data: bytes) -> None:
        try:
            import tifffile
        except ImportError as error:
            cause = f"tifffile cannot be imported ({error}), which reads TIFFs for this pipeline"
            raise LoaderError("E-DEPENDENCY", cause, fix=_INSTALL) from None
        if (log := logging.getLogger("tifffile")).level == logging.NOTSET:
            log.setLevel(logging.CRITICAL)  # it would print several lines for each damaged file, which we report
        try:
            self._file: Any = tifffile.TiffFile(io.BytesIO(data))
        except Exception as error:
            raise _tiff_error(error) from None

    def __enter__(self) -> Any:
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._file.close()
        if isinstance(error, Exception) and not isinstance(error, (LoaderError, MemoryError)):
            raise _tiff_error(error) from None


def _pages(file: Any) -> Iterator[Any]:
    """Yield the pages that are images at full size. Raises LoaderError for none or too many."""
    count = 0
    for page in file.pages:
        if page.subfiletype & (_REDUCED | _MASK):
            continue
        count += 1
        if count > MAX_CHANNELS:
            raise LoaderError("E-UNSUPPORTED", f"the TIFF has more than {MAX_CHANNELS} pages")
        yield page
    if count == 0:
        raise LoaderError("E-CORRUPT", "the TIFF has no image")


def _check_page(page: Any, first: Any, num_bytes: int) -> None:
    """Raise LoaderError for a page of an unknown layout, of another size or type than the first, or cut off."""
    shape = (page.imagelength, page.imagewidth, page.samplesperpixel)
    if page.imagelength < 1 or page.imagewidth < 1 or page.samplesperpixel < 1 or page.dtype is None:
        raise LoaderError("E-CORRUPT", f"the TIFF declares {shape[1]}x{shape[0]} pixels of {shape[2]} levels")
    if not math.prod(page.chunked) == len(page.dataoffsets) == len(page.databytecounts):
        raise LoaderError("E-CORRUPT", f"the TIFF declares {math.prod(page.chunked):,} strips and lacks some of them")
    if page.imagedepth != 1:
        raise LoaderError("E-UNSUPPORTED", f"the TIFF has pages of depth {page.imagedepth}", fix="save one per page")
    _check_type(page.dtype, "TIFF")
    expected = (first.imagelength, first.imagewidth, first.samplesperpixel)
    if (shape, page.dtype) != (expected, first.dtype):
        cause = f"the TIFF has pages of {first.dtype} {list(expected)} and of {page.dtype} {list(shape)}"
        raise LoaderError("E-UNSUPPORTED", cause, fix="save pages of one size and type")
    ends = (start + count for start, count in zip(page.dataoffsets, page.databytecounts, strict=True) if count)
    if max(ends, default=0) > num_bytes:
        raise LoaderError("E-TRUNC", "the TIFF ends before its last strip")
    if not any(page.databytecounts):
        raise LoaderError("E-CORRUPT", "the TIFF has no pixels")


def _decode_page(page: Any, shape: tuple[int, int, int]) -> Levels:
    levels = np.asarray(page.asarray(maxworkers=1))
    if page.axes == "SYX":
        levels = levels.transpose(1, 2, 0)
    levels = levels[:, :, None] if levels.ndim == 2 else levels
    if levels.shape != shape:
        raise LoaderError("E-CORRUPT", f"the TIFF declares {list(shape)} levels and has {list(levels.shape)}")
    return levels


def _tiff_error(error: Exception) -> LoaderError:
    text = " ".join(str(error).split()) or type(error).__name__
    if "imagecodecs" in text and "requires" in text:
        return LoaderError("E-DEPENDENCY", f"tifffile: {text}", fix=_INSTALL)
    return LoaderError("E-CORRUPT", f"tifffile: {text}")


def _check_type(dtype: np.dtype[Any], what: str) -> None:
    if dtype.kind not in "uif" or dtype.itemsize > 8:
        raise LoaderError("E-UNSUPPORTED", f"the {what} has levels of type {dtype}", fix="save integers or floats")


def as_levels(levels: npt.NDArray[Any], dtype: np.dtype[Any]) -> Levels:
    """Return levels in a type of a pipeline. Raises LoaderError E-UNSUPPORTED for levels that would change.

    uint8 becomes uint16 by a factor of 257; float32 accepts all types without a factor.
    """
    if levels.dtype == dtype or (levels.dtype == np.uint8 and dtype == np.uint16):
        return levels
    if dtype == np.float32:
        return levels.astype(np.float32)
    needed = 16 if levels.dtype == np.uint16 else 32
    cause = f"the image has levels of type {levels.dtype}, but the pipeline has depth={8 * dtype.itemsize}"
    raise LoaderError("E-UNSUPPORTED", cause, fix=f"pass ImagePipeline(depth={needed})")
