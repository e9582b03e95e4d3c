"""Encodes one image of a source as the bytes and the record of a cache.

- jpeg, lossless: an ordinary JPEG becomes STRIPS, a copy with restart markers, after its pixels have been compared with
  the source's. The native library makes the copy. Other JPEGs and every PNG, WebP, BMP and GIF are stored unchanged
  (FILE).
- jpeg, lossy: every image is decoded, resized and re-encoded, even if it is already small enough.
- raw: every image is decoded, resized if requested, and stored as PIXELS.
- array: every image but JPEGs is decoded with its channels and levels, and stored as a .npy file (FILE), unless
  pipelines for colours would read other pixels from it: levels of a palette, of few bits, or that count from white.

Images that only pipelines with other channels or levels can decode are stored unchanged. An image that cannot be
decoded is always stored unchanged, so that indices stay the same and reading it raises the same error as reading the
source does. EXIF orientation is recorded, never applied.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from penstock.loaders.data.cache.format import (
    FILE,
    JPEG_STRIP_PIXELS,
    PIXEL_STRIP_ROWS,
    PIXELS,
    RECORD,
    STRIP,
    STRIPS,
    Encoding,
    crc32,
)
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.jpeg import strips
from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.recode import NativeRecoder
from penstock.pipelines.resampling import resize
from penstock.pipelines.sample.decode import ImageDecoder, ImageInfo, choose_jpeg_decoder
from penstock.pipelines.sample.decode_bands import is_only_bands, pack_array
from penstock.pipelines.sample.orientation import swaps_sides
from penstock.pipelines.spec import ImagePipeline

# Distance between restart markers. At 32 pixels, the copies are 1.003 times as large as the photos and cropping takes
# 0.72 ms; at 64, 0.999 and 0.73; at 128, 0.995 and 0.85 (measured, 5.2 bits per pixel). A marker costs 3 bytes, which
# matters at fewer bits: with the lower bound of bytes, markers never cost more than about 4 %.
MIN_SEGMENT_PIXELS, MIN_SEGMENT_BYTES = 32, 80
_MAX_GROWTH = 1.25  # above this, for example for an image one pixel wide, the file is stored unchanged
_MAX_JPEG_SIDE = 65500  # libjpeg's own limit, JPEG_MAX_DIMENSION
_MAX_BYTES = 2**32 - 1  # RECORD's `length`
_OTHER_CHANNELS = ("E-UNSUPPORTED", "E-FORMAT", "E-CORRUPT")  # codes of valid files that the usual decoder refuses
_UNSOUND = "the copy is not sound"


NO_LIBRARY = "the native library is missing"


class _CannotRecode(Exception):
    """Raised with the reason why a JPEG is stored unchanged; the words do not vary, so that they can be counted."""


class Stored(NamedTuple):
    """An image as a cache stores it.

    Attributes:
        record: scalar of RECORD with offset 0.
        data: head and strips, pixels or file, record["length"] bytes.
        kept: why a JPEG was stored without restart markers, in fixed words; "" otherwise.
        bad: error code of reading the source; "" for an image that can be decoded.
    """

    record: np.void
    data: bytes
    kept: str = ""
    bad: str = ""


class _Origin(NamedTuple):
    """The parts of a record that every kind of storage has; sides in pixels as stored, orientation from EXIF."""

    label: int
    width: int = 0
    height: int = 0
    orientation: int = 1


class SampleEncoder:
    """Encodes images for a cache; for one thread only, since it reuses memory.

    Raises LoaderError E-DEPENDENCY without simplejpeg, or without Pillow for an image that needs it.
    """

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._look = ImageDecoder(ImagePipeline(exif="apply"), "simplejpeg")
        self._look_at_large = ImageDecoder(ImagePipeline(exif="apply", max_pixels=2**62), "simplejpeg")
        self._any = ImageDecoder(ImagePipeline(depth=16 if encoding.keeps_levels else 8), "simplejpeg", judge=True)
        self._source, self._copy = (choose_jpeg_decoder("simplejpeg")[0] for _ in range(2))
        library = native_library()
        self._native = None if library is None else NativeRecoder(library)

    def encode(self, data: bytes | Pixels, label: int) -> Stored:
        """Encode the image `data` (encoded, or uint8 [h, w, 3]) with its class number.

        A lossless cache stores arrays as pixels, even with encoding "jpeg", and arrays of other channels or levels as
        .npy. An image larger than the default max_pixels
        is stored unchanged with its declared size: the reader's max_pixels decides. Raises LoaderError E-UNSUPPORTED
        for a file of 4 GiB or more, E-DEPENDENCY.
        """
        if isinstance(data, np.ndarray):
            if self.encoding.kind == "array" or data.dtype != np.uint8 or data.shape[2] != 3:
                return self._encode_levels(data, label)
            if self.encoding.kind == "raw" or self.encoding.lossless:
                return _as_pixels(shrink(data, self.encoding), _Origin(label))
            return self._encode_anew(shrink(data, self.encoding), _Origin(label))
        if len(data) > _MAX_BYTES:
            raise LoaderError(
                "E-UNSUPPORTED", f"the file has {len(data):,} bytes: a cache stores less than 4 GiB per image"
            )
        origin = _Origin(label)
        try:
            if self.encoding.kind == "array" and not data.startswith(jpeg.SOI):
                return self._encode_stored(data, label)
            origin, probe = _as_stored(self._look.probe(data), label)
            return self._encode_decodable(data, probe, origin)
        except LoaderError as error:
            if error.code == "E-DEPENDENCY":  # not a fault of the image
                raise
            if error.code in _OTHER_CHANNELS:
                with contextlib.suppress(LoaderError):
                    found = self._look.bands(data)
                    found.decode()
                    return _as_file(data, _Origin(label, found.width, found.height, found.orientation(applies=False)))
            origin = _Origin(label, orientation=origin.orientation)
            if error.code == "E-BOMB":
                with contextlib.suppress(LoaderError):
                    origin, _ = _as_stored(self._look_at_large.probe(data), label)
            return _as_file(data, origin, bad=error.code)

    def _encode_stored(self, data: bytes, label: int) -> Stored:
        """Store a file as an array of its channels and levels; one that EXIF turns or with other colours, unchanged."""
        found = self._look.bands(data)
        levels = found.decode()
        if found.exif != 1 or self._changes_colours(data, levels):
            return _as_file(data, _Origin(label, found.width, found.height, found.orientation(applies=False)))
        return self._encode_levels(levels, label)

    def _changes_colours(self, data: bytes, levels: npt.NDArray[np.generic]) -> bool:
        """Return whether a pipeline for colours reads a file's levels, but other pixels, or none, from the file."""
        if is_only_bands(data):  # decoded in the same way for all pipelines
            return False
        try:
            as_array = self._any.full(pack_array(levels))
        except LoaderError:  # with a message
            return False
        try:
            return not np.array_equal(self._any.full(data), as_array)
        except LoaderError:
            return True

    def _encode_levels(self, levels: npt.NDArray[np.generic], label: int) -> Stored:
        """Store an array [h, w, channels] as a .npy file. Raises LoaderError E-UNSUPPORTED for a lossy encoding."""
        height, width, channels = levels.shape
        if not self.encoding.lossless:
            cause = f"{self.encoding.describe()} cannot store an array of {channels} channels and type {levels.dtype}"
            raise LoaderError("E-UNSUPPORTED", cause, fix="use an Encoding without resize and quality")
        grey = channels == 3 and levels.strides[2] == 0  # three channels in the same memory
        return _as_file(pack_array(levels[:, :, :1] if grey else levels), _Origin(label, width, height))

    def _encode_decodable(self, data: bytes, probe: ImageInfo, origin: _Origin) -> Stored:
        if self.encoding.keeps_levels:
            return self._encode_lossless(data, probe, origin)
        decoded = self._any.full(data, probe)
        if self._any.repair and self.encoding.lossless:
            return _as_file(data, origin, kept="libjpeg warned")  # stored pixels would hide the warning from the reader
        pixels = shrink(decoded, self.encoding)
        return _as_pixels(pixels, origin) if self.encoding.kind == "raw" else self._encode_anew(pixels, origin)

    def _encode_lossless(self, data: bytes, probe: ImageInfo, origin: _Origin) -> Stored:
        header = probe.header
        if header is None or not header.ordinary:
            self._any.full(data, probe)  # raises for images that no reader can decode
            return _as_file(data, origin, kept="" if header is None else _name_unsupported(header))
        pixels = self._source.rgb(data, header.height, header.width)
        if self._source.warning:
            # The repair, and where it begins, may depend on the rows that are decoded.
            self._any.full(data, probe)
            return _as_file(data, origin, kept="libjpeg warned")
        return self._as_strips(data, header, pixels, origin)

    def _encode_anew(self, pixels: Pixels, origin: _Origin) -> Stored:
        """Make a new JPEG of the pixels, with restart markers where possible."""
        height, width = pixels.shape[:2]
        origin = origin._replace(width=width, height=height)
        if max(height, width) > _MAX_JPEG_SIDE:
            return _as_pixels(pixels, origin)
        data: bytes = simplejpeg.encode_jpeg(pixels, self.encoding.quality, "RGB", "420", fastdct=False)
        header = jpeg.parse_header(data)
        return self._as_strips(data, header, self._source.rgb(data, height, width), origin)

    def _as_strips(self, data: bytes, header: jpeg.JpegHeader, pixels: Pixels, origin: _Origin) -> Stored:
        """Store a JPEG that decodes to `pixels`: as a copy with restart markers, or unchanged if that is impossible."""
        if self._native is None:
            return _as_file(data, origin, kept=NO_LIBRARY)
        try:
            return self._make_strips(self._native, data, header, pixels, origin)
        except _CannotRecode as error:
            return _as_file(data, origin, kept=str(error))

    def _make_strips(
        self, native: NativeRecoder, data: bytes, header: jpeg.JpegHeader, pixels: Pixels, origin: _Origin
    ) -> Stored:
        """Make the copy with restart markers, and prove it equal to `pixels`. Raises _CannotRecode."""
        mcu_width, mcu_height = strips.mcu_size(header)
        column_bytes = (len(data) - header.scan_offset) / (header.width * header.height) * mcu_height
        min_pixels = max(MIN_SEGMENT_PIXELS, int(MIN_SEGMENT_BYTES / column_bytes))
        segment_mcus = strips.segment_length(header, min_pixels)
        geometry = strips.StripGeometry(header.width, header.height, mcu_width, mcu_height, segment_mcus)
        copied = native.recode(data, segment_mcus, geometry.rows * geometry.segments)
        if copied is None:
            raise _CannotRecode("unsupported by the native library")
        copy, ends = copied
        found = _read_copy_header(copy, header, segment_mcus)
        scan = np.frombuffer(copy, np.uint8)[found.scan_offset : -len(jpeg.EOI)]
        if len(ends) != geometry.rows * geometry.segments or not _are_ends(scan, ends):
            raise _CannotRecode(_UNSOUND)
        if not native.same_pixels(copy, pixels):
            self._compare(copy, pixels)
        strip_rows = max(1, JPEG_STRIP_PIXELS // geometry.mcu_height)
        row_ends = ends[geometry.segments - 1 :: geometry.segments]
        table = _make_strip_table(scan, np.append(row_ends[strip_rows - 1 : -1 : strip_rows], len(scan)))
        head = table.tobytes() + copy[: found.scan_offset]
        if len(head) + len(scan) > _MAX_GROWTH * len(data):
            raise _CannotRecode("larger with restart markers")
        mcu = (geometry.mcu_width, geometry.mcu_height, segment_mcus, strip_rows, found.height_offset)
        stored = b"".join((head, scan.data))
        return Stored(_make_record(STRIPS, len(stored), len(head), crc32(head, 0), origin, mcu), stored)

    def _compare(self, copy: bytes, pixels: Pixels) -> None:
        """Raise _CannotRecode unless libjpeg decodes `copy` to `pixels` without a warning."""
        height, width = pixels.shape[:2]
        try:
            decoded = self._copy.rgb(copy, height, width)
        except LoaderError as error:
            raise _CannotRecode(_UNSOUND) from error
        if self._copy.warning:
            raise _CannotRecode(_UNSOUND)
        if not _are_equal(decoded, pixels):
            raise _CannotRecode("pixels differ")


def shrink_size(width: int, height: int, encoding: Encoding) -> tuple[int, int]:
    """Return (width, height) in pixels after the encoding's resize: same aspect, sides at least 1, never enlarged.

    The other side is rounded down, as torchvision's Resize and FFCV do.
    """
    given = max(width, height) if encoding.longer_side else min(width, height)
    target = encoding.resize
    if target is None or given <= target:
        return width, height
    return max(1, width * target // given), max(1, height * target // given)


def shrink(pixels: Pixels, encoding: Encoding) -> Pixels:
    """Return an image, uint8 [h, w, 3], resized with antialiasing, or unchanged if small enough; always contiguous."""
    width, height = shrink_size(pixels.shape[1], pixels.shape[0], encoding)
    if (height, width) == pixels.shape[:2]:
        return np.ascontiguousarray(pixels)
    return resize(pixels, (height, width))


def _as_stored(upright: ImageInfo, label: int) -> tuple[_Origin, ImageInfo]:
    """Return the image's origin and probe as stored, before any EXIF orientation."""
    width, height = upright.width, upright.height
    if swaps_sides(upright.orientation):
        width, height = height, width
    origin = _Origin(label, width, height, upright.orientation)
    return origin, upright._replace(width=width, height=height, orientation=1)


def _name_unsupported(header: jpeg.JpegHeader) -> str:
    if header.sof > 0xC2:
        return "arithmetic coding"
    return "CMYK" if header.components == 4 else "odd sampling"


def _read_copy_header(copy: bytes, source: jpeg.JpegHeader, segment_mcus: int) -> jpeg.JpegHeader:
    """Return the header of a copy. Raises _CannotRecode unless it is the requested kind of JPEG."""
    try:
        found = jpeg.parse_header(copy) if copy.startswith(jpeg.SOI) else None
    except LoaderError as error:
        raise _CannotRecode(_UNSOUND) from error
    if found is None or not (found.stoppable and found.ordinary and copy.endswith(jpeg.EOI)):
        raise _CannotRecode(_UNSOUND)
    same = (found.width, found.height, strips.mcu_size(found)) == (source.width, source.height, strips.mcu_size(source))
    if not same or strips.restart_interval(copy, found) != segment_mcus or len(copy) > _MAX_BYTES:
        raise _CannotRecode(_UNSOUND)
    return found


def _are_ends(scan: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> bool:
    """Return whether `ends` are the ends of segments: after a restart marker of the right number, and at the end."""
    if ends[-1] != len(scan) or (np.diff(ends) < 1).any():
        return False
    numbers = strips.RST0 | (np.arange(len(ends) - 1) & 7)
    return bool((scan[ends[:-1] - 2] == 0xFF).all() and (scan[ends[:-1] - 1] == numbers).all())


def _are_equal(a: Pixels, b: Pixels) -> bool:
    """Return whether two contiguous images are equal; comparing words of 8 bytes takes a third of the time."""
    if a.shape != b.shape:
        return False
    words = a.size // 8 * 8
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    same = np.array_equal(flat_a[:words].view(np.uint64), flat_b[:words].view(np.uint64))
    return same and np.array_equal(flat_a[words:], flat_b[words:])


def _make_strip_table(scan: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    table = np.zeros(len(ends), STRIP)
    table["end"] = ends
    begin = crc = 0
    for number, end in enumerate(ends.tolist()):
        table["crc"][number] = crc = crc32(scan[begin:end], crc)
        begin = end
    return table


def _as_pixels(pixels: Pixels, origin: _Origin) -> Stored:
    height, width = pixels.shape[:2]
    crcs, crc = [], 0
    for row in range(0, height, PIXEL_STRIP_ROWS):
        crc = crc32(pixels[row : row + PIXEL_STRIP_ROWS].reshape(-1), crc)
        crcs.append(crc)
    head = np.array(crcs, "<u4").tobytes()
    if len(head) + pixels.nbytes > _MAX_BYTES:
        raise LoaderError("E-UNSUPPORTED", f"{width}x{height} pixels: a cache stores less than 4 GiB per image")
    stored = b"".join((head, pixels.reshape(-1).data))
    origin = origin._replace(width=width, height=height)
    record = _make_record(PIXELS, len(stored), len(head), crc32(head, 0), origin, (0, 0, 0, PIXEL_STRIP_ROWS, 0))
    return Stored(record, stored)


def field_as_file(data: bytes) -> Stored:
    """Return the file of a mask or image target as a cache stores it."""
    return _as_file(data, _Origin(0))


def _as_file(data: bytes, origin: _Origin, *, kept: str = "", bad: str = "") -> Stored:
    return Stored(_make_record(FILE, len(data), 0, crc32(data, 0), origin, (0, 0, 0, 0, 0)), data, kept, bad)


def _make_record(
    kind: int, length: int, head: int, crc: int, origin: _Origin, layout: tuple[int, int, int, int, int]
) -> np.void:
    """Make a scalar of RECORD; `layout` is its last five fields."""
    made = np.zeros((), RECORD)
    made[()] = (0, length, head, crc, origin.width, origin.height, origin.label, kind, origin.orientation, *layout)
    record: np.void = made[()]  # type: ignore[assignment]
    return record
