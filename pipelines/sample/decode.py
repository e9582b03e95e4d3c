"""Decodes image files, with one contract for all decoders: they return the same pixels and reject the same files.

- The result is always RGB, uint8, height x width x 3. Grey is repeated, palettes are resolved, alpha is dropped, CMYK
  and YCCK (inverted by Adobe or not) are converted as Pillow does, an animation gives its first frame. 16-bit samples
  are scaled (>> 8) with a warning; a pipeline with depth=16 gets them as uint16.
- A pipeline that keeps channels gets the channels and levels as stored; see decode_bands.py, which also reads arrays
  (.npy) and stacks of files for other pipelines.
- The first bytes determine the format (JPEG, PNG, WebP, BMP, GIF, TIFF, .npy), not the file's name.
- EXIF orientation is ignored or applied, depending on the pipeline.
- A size above `max_pixels` is rejected before memory is allocated. Files crafted to keep a decoder busy (hundreds of
  scans, megabytes of junk) are rejected too. A truncated file is rejected wherever it was cut.
- The chosen decoder decodes ordinary JPEGs (8 bits, Huffman, grey or YCbCr/RGB with a usual chroma sampling) with the
  accurate DCT and fancy upsampling, so all decoders are bit-exact. Pillow decodes everything else, so the choice of a
  decoder never changes which images are accepted.
- Damage that a decoder can repair (libjpeg's warnings) is accepted, and reported by `repair`. Stray markers in the
  image data are rejected, because libjpeg's result depends on the row at which it stops.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Levels, Pixels, Window
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.jpeg.strips import end_at_restart
from penstock.pipelines.messages.checked import checked_choice
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.native.library import CURE, native_library
from penstock.pipelines.sample.decode_bands import Bands, as_levels, is_only_bands, read_bands
from penstock.pipelines.sample.formats import bytes_per_pixel, check_end, has_16_bits, read_format
from penstock.pipelines.sample.orientation import stored_window, swaps_sides, upright
from penstock.pipelines.spec import ImagePipeline


class JpegDecoder(Protocol):
    """Decode ordinary JPEGs (JpegHeader.ordinary); an instance belongs to one thread.

    Attributes:
        name: name of the decoder in options and records.
    """

    name: str

    @property
    def warning(self) -> str | None:
        """First warning of libjpeg about the last image; "" for none, None if the decoder does not report it."""
        ...

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        """Decode a file that declares this size to uint8 [height, width, 3]; raises LoaderError E-CORRUPT.

        The result may be a view of memory that the next call overwrites.
        """
        ...

    def version(self) -> str:
        """Return the versions of package and library, for records."""
        ...


# Fastest first: "auto" uses the first that works. simplejpeg comes first: its wheel has the newest libjpeg-turbo.
_DECODERS: dict[str, tuple[str, str]] = {
    "simplejpeg": ("penstock.pipelines.sample.decode_simplejpeg", "SimplejpegDecoder"),
    "turbojpeg": ("penstock.pipelines.sample.decode_turbojpeg", "TurbojpegDecoder"),
    "pillow": ("penstock.pipelines.sample.decode_pillow", "PillowJpegDecoder"),
}
# The native library decodes batches of ordinary JPEGs; the decoder chosen here decodes the remaining images.
NATIVE = "native"
JPEG_DECODERS = tuple(_DECODERS)
DECODER_NAMES = ("auto", NATIVE, *JPEG_DECODERS)


def choose_jpeg_decoder(name: str) -> tuple[JpegDecoder, str]:
    """Return the decoder `name`, or for "auto" the fastest that works here, and the reason for the choice.

    Raises ValueError for an unknown name, LoaderError E-DEPENDENCY with an install command if it cannot be used here.
    """
    checked_choice("decoder", name, DECODER_NAMES)
    if name == NATIVE:
        if native_library() is None:
            raise LoaderError("E-DEPENDENCY", "the native library was not built here", fix=CURE)
        name = "auto"
    if name != "auto":
        module, attribute = _DECODERS[name]
        return cast(JpegDecoder, getattr(importlib.import_module(module), attribute)()), "chosen by name"
    missing: list[str] = []
    for candidate in _DECODERS:
        try:
            decoder, _ = choose_jpeg_decoder(candidate)
        except LoaderError as error:
            missing.append(f"{candidate}: {error.cause}")
            continue
        reason = "the fastest of those installed" if not missing else f"the first that works ({'; '.join(missing)})"
        return decoder, reason
    raise LoaderError("E-DEPENDENCY", "no JPEG decoder works: " + "; ".join(missing), fix="pip install simplejpeg")


class ImageInfo(NamedTuple):
    """Properties of an image that are known before decoding.

    Attributes:
        width: width of the upright image (of the stored image if EXIF is ignored), in pixels, above 0.
        height: height of the upright image, in pixels, above 0.
        format: Pillow's name of the format; "" for pixels.
        orientation: EXIF orientation that decoding will undo, 1 to 8; 1 if EXIF is ignored.
        header: parsed header of a JPEG; None for other formats.
        exif: EXIF orientation of the file, 1 to 8; 0 if it is ignored and was not read.
        bands: the image, if its channels are decoded as stored.
    """

    width: int
    height: int
    format: str
    orientation: int
    header: jpeg.JpegHeader | None
    exif: int = 0
    bands: Bands | None = None


class ImageDecoder:
    """Decode any supported image with the settings of one pipeline; an instance belongs to one thread.

    Args:
        judge: detect repairs by libjpeg; if the decoder does not report them, this takes two thirds of a decode extra.

    Attributes:
        name: name of the decoder for ordinary JPEGs.
        reason: why this decoder was chosen, a short text.
        repair: libjpeg's warning that it filled in data in the rows of the last window; "" for none, or if not judged.
        has_asked: whether the last window needed a second pass, because a warning about the header came first.
    """

    def __init__(self, pipeline: ImagePipeline, decoder: str = "auto", *, judge: bool = False) -> None:
        self._jpeg, self.reason = choose_jpeg_decoder(decoder)
        self.name = self._jpeg.name
        self._reports_warnings = self._jpeg.warning is not None
        self._apply_exif = pipeline.exif == "apply"
        self._max_pixels = pipeline.max_pixels
        self._judge, self.repair, self.has_asked = judge, "", False
        self._dtype = np.dtype(pipeline.sample_dtype)
        self._channels, self._keeps_channels = pipeline.channels, pipeline.keeps_channels

    def version(self) -> str:
        """Return the versions of the JPEG decoder, for records."""
        return self._jpeg.version()

    def probe(self, data: bytes, exif: int = 0) -> ImageInfo:
        """Read format, size and orientation; raises LoaderError for everything that can be rejected before decoding.

        exif: the orientation, 1 to 8, if known; 0 to read it from the file.
        """
        if self._keeps_channels or is_only_bands(data):
            return self._probe_bands(data, exif)
        header = jpeg.parse_header(data) if data.startswith(jpeg.SOI) else None
        if header is not None:
            kind, width, height = "JPEG", header.width, header.height
        else:
            kind, width, height = read_format(data)
        if width < 1 or height < 1:
            raise LoaderError("E-CORRUPT", f"the {kind} declares a size of {width}x{height}")
        self._check_size(width, height, bytes_per_pixel(data, kind))
        if header is None:
            check_end(data, kind)
        elif not jpeg.has_end_marker(data, header):
            raise self._missing_end_error(data, header)
        else:
            jpeg.check_scans(data, header, self._max_pixels)
        if self._apply_exif and not exif:
            exif = self._read_orientation(data, kind, header)
        return self._describe(width, height, kind, header, exif)

    def bands(self, data: bytes, channels: int = 0) -> Bands:
        """Return an image with its channels and levels as stored, whatever those of the pipeline are.

        channels: the expected number if it is known, see read_bands. Raises LoaderError as `probe` does, and
        E-DEPENDENCY for a TIFF without tifffile.
        """
        found = read_bands(data, channels, self.stored)
        # The limit is for pixels of the pipeline, or of 4 bytes.
        pixel_bytes = max(1, found.channels) * found.dtype.itemsize
        self._check_size(found.width, found.height, pixel_bytes * 4 // max(4, self._channels * self._dtype.itemsize))
        return found

    def _probe_bands(self, data: bytes, exif: int) -> ImageInfo:
        bands = self.bands(data, self._channels)
        if bands.channels:
            self._check_channels(bands.channels, bands.likely_channels)
        found = bands.orientation(applies=self._apply_exif)
        return self._describe(bands.width, bands.height, "", None, exif or found)._replace(bands=bands)

    def stored(self, data: bytes) -> Bands:
        """Return an image file with its channels and levels, also a TIFF; colour JPEGs of all kinds have 3 channels."""
        from penstock.pipelines.sample.decode_pillow import decode_stored

        self.repair, info = "", ImageDecoder.probe(self._usual, data)
        if info.header is not None:
            count, deep = 1 if info.header.components == 1 else 3, False
            decode: Callable[[], Levels] = partial(self._decode_jpeg, data, info, count)
        else:
            count, deep = 0, has_16_bits(data, info.format)
            decode = partial(decode_stored, data, info.format, (info.width, info.height), deep=deep)
        dtype = np.dtype(np.uint16 if deep else np.uint8)
        return Bands(info.width, info.height, count, dtype, self._usual.read_exif(data, info), decode)

    def _decode_jpeg(self, data: bytes, info: ImageInfo, channels: int) -> Levels:
        pixels = self._usual.full(data, info)[:, :, :channels].copy()
        self.repair = self.repair or self._usual.repair
        return pixels

    @cached_property
    def _usual(self) -> ImageDecoder:
        """A decoder of stored pixels as RGB."""
        return ImageDecoder(ImagePipeline(max_pixels=self._max_pixels), self.name, judge=self._judge)

    def _check_channels(self, found: int, likely: int = 0) -> None:
        """Raise LoaderError E-UNSUPPORTED for an image with another number of channels than the pipeline's.

        likely: the number in the message, by default `found`.
        """
        if found != self._channels and (self._keeps_channels or found not in (1, 3)):
            count = likely or found
            cause = f"the image has {count} channels, but the pipeline has channels={self._channels}"
            raise LoaderError("E-UNSUPPORTED", cause, fix=f"pass ImagePipeline(channels={count}), or remove the image")

    def _decode_bands(self, bands: Bands) -> Levels:
        """Decode an image with its channels as stored; grey is repeated if the pipeline converts grey to colour."""
        levels = as_levels(bands.decode(), self._dtype)
        self._check_channels(levels.shape[2])
        if levels.shape[2] == 1 and not self._keeps_channels:
            return np.repeat(levels, 3, axis=2)
        return levels

    def probe_pixels(self, pixels: Levels, exif: int) -> ImageInfo:
        """Return the result of `probe` for stored pixels with an EXIF orientation; raises LoaderError E-BOMB."""
        height, width = pixels.shape[:2]
        self._check_size(width, height)
        return self._describe(width, height, "", None, exif)

    def _describe(self, width: int, height: int, kind: str, header: jpeg.JpegHeader | None, exif: int) -> ImageInfo:
        orientation = exif if self._apply_exif else 1
        if swaps_sides(orientation):
            width, height = height, width
        return ImageInfo(width, height, kind, orientation, header, exif)

    def read_exif(self, data: bytes, info: ImageInfo) -> int:
        """Return the EXIF orientation of a probed file, 1 to 8, even if the pipeline ignores it."""
        return info.exif or self._read_orientation(data, info.format, info.header)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Return whether pixels of this type can become samples of the pipeline without loss."""
        return dtype in (np.uint8, self._dtype) or (self._dtype == np.float32 and dtype.kind in "uif")

    def select_channels(self, pixels: Levels) -> Levels:
        """Return pixels of a source as the pipeline needs them. Raises LoaderError E-UNSUPPORTED for other channels."""
        if self._keeps_channels and self._channels == 1 and pixels.strides[2] == 0:
            pixels = pixels[:, :, :1]  # grey images are served as three channels in the same memory
        if self._keeps_channels or pixels.shape[2] != 3:
            self._check_channels(pixels.shape[2])
        return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 and not self._keeps_channels else pixels

    def window(self, data: bytes, info: ImageInfo, window: Window, *, sound: bool = False) -> Levels:
        """Decode `window` (x, y, width, height in the upright image): uint8 [height, width, 3].

        With depth=16 an image of 16 bits becomes uint16. The result is a view that stays valid until the next call.
        Rows below the window are not decoded if the file allows it. Pass `sound` if the method `sound` has found
        nothing to repair. Raises LoaderError E-CORRUPT, E-TRUNC or E-UNSUPPORTED.
        """
        x, y, w, h = stored_window(window, info.width, info.height, info.orientation)
        header, self.repair, self.has_asked = info.header, "", False
        if info.bands is not None:
            pixels: Levels = self._decode_bands(info.bands)
        elif header is not None and header.ordinary:
            pixels = self._decode_ordinary(data, header, jpeg.rows_to_decode(header, y + h), sound)
        else:
            pixels = _decode_with_pillow(data, info, deep=self._keeps_16_bits(data, info.format))
            if header is not None and not sound:
                self._note_repair(data, header, header.height, None)
        return upright(pixels[y : y + h, x : x + w], info.orientation)

    def _keeps_16_bits(self, data: bytes, kind: str) -> bool:
        """Return whether the file has levels of 16 bits that the pipeline keeps; warn if it does not keep them."""
        if not has_16_bits(data, kind):
            return False
        if self._dtype != np.uint16:
            warn_user("16-bit images become 8-bit ones: ImagePipeline(depth=16) keeps all bits")
        return self._dtype == np.uint16

    def _decode_ordinary(self, data: bytes, header: jpeg.JpegHeader, rows: int, sound: bool) -> Pixels:
        """Decode the rows above `rows`; raises LoaderError E-CORRUPT for stray markers anywhere in the file."""
        stopped = jpeg.stop_below(data, header, rows)
        if not self._reports_warnings:
            if not sound:
                _refuse_stray_markers(data, header, self._note_repair(data, header, rows, None))
            return self._jpeg.rgb(stopped, rows, header.width)
        part = end_at_restart(stopped, header, rows) if self._judge else stopped
        pixels = self._jpeg.rgb(part, rows, header.width)
        if sound:
            return pixels
        warning = self._note_repair(data, header, rows, self._jpeg.warning)
        if self.repair and part is not stopped:  # libjpeg also uses the data after the cut
            pixels = self._jpeg.rgb(stopped, rows, header.width)
        _refuse_stray_markers(data, header, warning if part is stopped else None)
        return pixels

    def _note_repair(self, data: bytes, header: jpeg.JpegHeader, rows: int, warning: str | None) -> str | None:
        """Set `repair` from the decoder's `warning`; ask libjpeg if that is None or only about the header.

        Returns the decoder's warning, or libjpeg's if that is None.
        """
        message = warning
        if self._judge and (warning is None or jpeg.is_header_warning(warning)):
            message = _find_first_message(data, header, rows)
            self.has_asked = True
        is_repair = self._judge and message and jpeg.reports_repair(message, header, rows, len(data))
        self.repair = message if is_repair and message else ""
        return message if warning is None else warning

    def reports_repairs(self, info: ImageInfo) -> bool:
        """Return whether decoding the image reports repairs; if not, each of its windows must be judged separately."""
        return not self._judge or info.header is None or (self._reports_warnings and info.header.ordinary)

    def sound(self, data: bytes, info: ImageInfo) -> bool:
        """Return whether libjpeg repairs nothing in the whole image, or rejects it; True without `judge`."""
        if not self._judge or info.header is None:
            return True
        header = info.header
        message = _find_first_message(data, header, header.height)
        if message is None or not jpeg.is_warning(message):
            return message is not None
        repaired = jpeg.reports_repair(message, header, header.height, len(data))
        return not repaired and jpeg.rules_out_stray_markers(message, header)

    def _check_size(self, width: int, height: int, pixel_bytes: int = 4) -> None:
        if width * height * pixel_bytes > 4 * self._max_pixels:
            of = f" of {pixel_bytes} bytes" if pixel_bytes > 4 else ""
            counted = ", for up to 4 bytes each" if pixel_bytes > 4 else ""
            cause = f"{width}x{height} pixels{of} declared, max_pixels is {self._max_pixels}{counted}"
            raise LoaderError("E-BOMB", cause)

    def full(self, data: bytes, info: ImageInfo | None = None) -> Levels:
        """Decode the whole image, [height, width, 3], valid until the next call; errors as in probe and window."""
        info = info or self.probe(data)
        return self.window(data, info, (0, 0, info.width, info.height))

    @staticmethod
    def _missing_end_error(data: bytes, header: jpeg.JpegHeader) -> LoaderError:
        # If the file decodes without a warning after the marker is added, nothing else is missing.
        decoder = importlib.import_module("penstock.pipelines.sample.decode_simplejpeg")
        if header.ordinary and decoder.find_first_message(data + jpeg.EOI) == "":
            return LoaderError("E-EOI", "all rows are there but the end-of-image marker is missing")
        return LoaderError("E-TRUNC", "the JPEG has no end-of-image marker: it was truncated")

    @staticmethod
    def _read_orientation(data: bytes, kind: str, header: jpeg.JpegHeader | None) -> int:
        payload = jpeg.find_exif(data, header) if header is not None else None
        if header is not None and payload is None:
            return 1
        from penstock.pipelines.sample import decode_pillow

        found = (
            decode_pillow.read_exif_orientation(payload) if payload else decode_pillow.read_file_orientation(data, kind)
        )
        return found if 1 <= found <= 8 else 1


def _find_first_message(data: bytes, header: jpeg.JpegHeader, rows: int) -> str | None:
    """Return libjpeg's first warning or error when decoding the rows above `rows`; "" if there is none.

    Returns None if simplejpeg is missing. Takes about two thirds of the time of decoding. Warnings about metadata are
    omitted. Sampling factors that TurboJPEG does not know are an error.
    """
    try:
        decoder = importlib.import_module("penstock.pipelines.sample.decode_simplejpeg")
    except LoaderError:
        return None
    part = end_at_restart(jpeg.stop_below(data, header, rows), header, rows)
    message: str = decoder.find_first_message(jpeg.strip_metadata(part, header, colour=False))
    return message


def _refuse_stray_markers(data: bytes, header: jpeg.JpegHeader, warning: str | None) -> None:
    if warning is None or not jpeg.rules_out_stray_markers(warning, header):
        jpeg.check_markers(data, header)


def _decode_with_pillow(data: bytes, info: ImageInfo, *, deep: bool) -> Levels:
    from penstock.pipelines.sample import decode_pillow

    if info.header is not None:
        return decode_pillow.decode_any_jpeg(data, info.header)
    sides = (info.width, info.height)
    stored = sides[::-1] if swaps_sides(info.orientation) else sides
    return decode_pillow.decode_any_image(data, info.format, stored, deep=deep)
