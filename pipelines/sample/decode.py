"""Decoding an image file, with one contract for all decoders: the same pixels, and the same files refused.

- The result is always RGB, uint8, height x width x 3. Grey is repeated, palettes are resolved, alpha is dropped, CMYK
  and YCCK (inverted by Adobe or not) are converted as Pillow does, 16-bit samples are scaled (>> 8), an animation gives
  its first frame.
- The first bytes decide on the format (JPEG, PNG, WebP, BMP, GIF), whatever the file is called.
- EXIF orientation is ignored or applied, as the pipeline says.
- A size above `max_pixels` is refused before memory is allocated, and so are files made to keep a decoder busy: scans
  by the hundred, junk by the megabyte. A file without its end is refused wherever it was cut.
- The chosen decoder decodes ordinary JPEGs (8 bits, Huffman, grey or YCbCr/RGB with a usual chroma sampling) with the
  accurate DCT and fancy upsampling, which makes all decoders bit-exact. Everything else goes to Pillow, whichever
  decoder was chosen, so the choice never decides what is accepted.
- Damage that a decoder can repair (libjpeg's warnings) is accepted, and told of by `repair`. Stray markers in the image
  data are refused: what libjpeg makes of them depends on the row at which it stops.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol, cast

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import ImagePart, Pixels, StoredSize, Window
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.jpeg.strips import end_at_restart
from penstock.pipelines.native.library import CURE, native_library
from penstock.pipelines.sample.formats import bytes_a_pixel, check_end, file_format
from penstock.pipelines.sample.orientation import stored_window, swaps_sides, upright
from penstock.pipelines.sample.repairs import first_message
from penstock.pipelines.spec import ImagePipeline


class JpegDecoder(Protocol):
    """Decode ordinary JPEGs (JpegHeader.ordinary); an instance belongs to one thread.

    Attributes:
        name: name of the decoder in options and records.
    """

    name: str

    @property
    def warning(self) -> str | None:
        """What libjpeg warned of first in the last image; "" if nothing, None if the decoder does not tell."""
        ...

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        """Decode a file that declares this size to uint8 [height, width, 3]; raises LoaderError E-CORRUPT.

        The result may be a view of memory that the next call overwrites.
        """
        ...

    def version(self) -> str:
        """Return the versions of package and library, for records."""
        ...


# Fastest first: "auto" takes the first that works. simplejpeg leads because its wheel bundles the newest libjpeg-turbo.
_DECODERS: dict[str, tuple[str, str]] = {
    "simplejpeg": ("penstock.pipelines.sample.decode_simplejpeg", "SimplejpegDecoder"),
    "turbojpeg": ("penstock.pipelines.sample.decode_turbojpeg", "TurbojpegDecoder"),
    "pillow": ("penstock.pipelines.sample.decode_pillow", "PillowJpegDecoder"),
}
# The native library decodes ordinary JPEGs a batch at a time; the decoder chosen here takes what it leaves.
NATIVE = "native"
JPEG_DECODERS = tuple(_DECODERS)
DECODER_NAMES = ("auto", NATIVE, *JPEG_DECODERS)


def choose_jpeg_decoder(name: str) -> tuple[JpegDecoder, str]:
    """Return the decoder called `name`, or for "auto" the fastest that works here, and a few words on why this one.

    Raises ValueError for an unknown name, LoaderError E-DEPENDENCY (with what to install) if it cannot be used here.
    """
    if name not in DECODER_NAMES:
        raise ValueError(f"decoder is one of {', '.join(DECODER_NAMES)}, not {name!r}")
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
    """Hold what is known about an image before it is decoded.

    Attributes:
        width: width of the image once it is upright (as stored, where EXIF is ignored), in pixels, above 0.
        height: height of the image once it is upright, in pixels, above 0.
        format: name of the format, one of Pillow's; "" for an image whose file has not been read.
        orientation: EXIF orientation that decoding will undo, 1 to 8; 1 where EXIF is ignored.
        header: parsed header of a JPEG; None for other formats.
    """

    width: int
    height: int
    format: str
    orientation: int
    header: jpeg.JpegHeader | None


class ImageDecoder:
    """Decode any supported image as one pipeline demands; an instance belongs to one thread.

    Args:
        judge: find out what libjpeg repairs; where the decoder does not tell, that takes two thirds of a decode more.

    Attributes:
        name: name of the decoder for ordinary JPEGs.
        reason: a few words on why this decoder was chosen.
        repair: libjpeg's warning that it made up data in the rows of the last window; "" for none, or if not judged.
        asked: set once a window took a second look, because a warning about the header came first.
    """

    def __init__(self, pipeline: ImagePipeline, decoder: str = "auto", *, judge: bool = False) -> None:
        self._jpeg, self.reason = choose_jpeg_decoder(decoder)
        self.name = self._jpeg.name
        self._tells = self._jpeg.warning is not None
        self._apply_exif = pipeline.exif == "apply"
        self._max_pixels = pipeline.max_pixels
        self._judge, self.repair, self.asked = judge, "", False

    def version(self) -> str:
        """Return the versions of the JPEG decoder, for records."""
        return self._jpeg.version()

    def probe(self, data: bytes) -> ImageInfo:
        """Read format, size and orientation; raises LoaderError for all that can be refused before decoding."""
        header = jpeg.parse_header(data) if data.startswith(jpeg.SOI) else None
        if header is not None:
            kind, width, height = "JPEG", header.width, header.height
        else:
            kind, width, height = file_format(data)
        if width < 1 or height < 1:
            raise LoaderError("E-CORRUPT", f"the {kind} declares a size of {width}x{height}")
        self._check_size(width, height, bytes_a_pixel(data, kind))
        if header is None:
            check_end(data, kind)
        elif not jpeg.has_end_marker(data, header):
            raise self._missing_end(data, header)
        else:
            jpeg.check_scans(data, header, self._max_pixels)
        orientation = self._orientation(data, kind, header) if self._apply_exif else 1
        if swaps_sides(orientation):
            width, height = height, width
        return ImageInfo(width, height, kind, orientation, header)

    def window(self, data: bytes, info: ImageInfo, window: Window, *, sound: bool = False) -> Pixels:
        """Decode `window` (x, y, width, height in the upright image): uint8 [height, width, 3].

        The result is a view that stays valid until the next call. Rows below the window are not decoded where the file
        allows that. `sound` says that `sound` was asked, and found nothing to repair. Raises LoaderError E-CORRUPT,
        E-TRUNC or E-UNSUPPORTED.
        """
        x, y, w, h = stored_window(window, info.width, info.height, info.orientation)
        header, self.repair, self.asked = info.header, "", False
        if header is not None and header.ordinary:
            pixels = self._ordinary(data, header, jpeg.rows_to_decode(header, y + h), sound)
        else:
            pixels = _decode_with_pillow(data, info)
            if header is not None and not sound:
                self._note_repair(data, header, header.height, None)
        return upright(pixels[y : y + h, x : x + w], info.orientation)

    def _ordinary(self, data: bytes, header: jpeg.JpegHeader, rows: int, sound: bool) -> Pixels:
        """Decode the rows above `rows`; raises LoaderError E-CORRUPT for stray markers, wherever they are."""
        stopped = jpeg.stop_below(data, header, rows)
        if not self._tells:
            if not sound:
                _refuse_stray_markers(data, header, self._note_repair(data, header, rows, None))
            return self._jpeg.rgb(stopped, rows, header.width)
        part = end_at_restart(stopped, header, rows) if self._judge else stopped
        pixels = self._jpeg.rgb(part, rows, header.width)
        if sound:
            return pixels
        warning = self._note_repair(data, header, rows, self._jpeg.warning)
        if self.repair and part is not stopped:  # libjpeg also makes use of what follows
            pixels = self._jpeg.rgb(stopped, rows, header.width)
        _refuse_stray_markers(data, header, warning if part is stopped else None)
        return pixels

    def _note_repair(self, data: bytes, header: jpeg.JpegHeader, rows: int, warning: str | None) -> str | None:
        """Set `repair` to what a warning tells, or what libjpeg says where it does not; return what it was set by."""
        if self._judge and (warning is None or jpeg.is_header_warning(warning)):
            said = first_message(data, header, rows)
            self.asked = True
            warning = said if warning is None else warning
        else:
            said = warning
        told = self._judge and said and jpeg.tells_of_repair(said, header, rows, len(data))
        self.repair = said if told and said else ""
        return warning

    def tells(self, info: ImageInfo) -> bool:
        """Return whether decoding the image tells what is repaired in it; if not, each window of it is judged anew."""
        return not self._judge or info.header is None or (self._tells and info.header.ordinary)

    def sound(self, data: bytes, info: ImageInfo) -> bool:
        """Return whether libjpeg repairs nothing in the whole image, or refuses it; True if nothing is judged."""
        if not self._judge or info.header is None:
            return True
        header = info.header
        message = first_message(data, header, header.height)
        if message is None or not jpeg.is_warning(message):
            return message is not None
        repaired = jpeg.tells_of_repair(message, header, header.height, len(data))
        return not repaired and jpeg.rules_out_stray_markers(message, header)

    def probe_stored(self, size: StoredSize) -> ImageInfo:
        """Return what `probe` would for an image whose stored size is known without its bytes; LoaderError E-BOMB."""
        width, height, orientation = size
        self._check_size(width, height)
        if not self._apply_exif:
            return ImageInfo(width, height, "", 1, None)
        sides = (height, width) if swaps_sides(orientation) else (width, height)
        return ImageInfo(*sides, "", orientation, None)

    def part(self, part: ImagePart, info: ImageInfo, window: Window) -> Pixels:
        """Decode `window` of the stored image from a part that holds it, and turn it upright: uint8 [height, width, 3].

        The result is a view that stays valid until the next call. Raises LoaderError E-CORRUPT.
        """
        x, y, w, h = window
        pixels = part.data
        if isinstance(pixels, bytes):
            if not self._tells:
                jpeg.check_markers(pixels, jpeg.parse_header(pixels))
            pixels = self._jpeg.rgb(pixels, part.height, part.width)
            if self._jpeg.warning:
                raise LoaderError("E-CORRUPT", f"the stored part of this image is damaged: {self._jpeg.warning}")
        return upright(pixels[y - part.y : y - part.y + h, x - part.x : x - part.x + w], info.orientation)

    def _check_size(self, width: int, height: int, pixel_bytes: int = 4) -> None:
        if width * height * pixel_bytes > 4 * self._max_pixels:
            of = f" of {pixel_bytes} bytes" if pixel_bytes > 4 else ""
            counted = ", for up to 4 bytes each" if pixel_bytes > 4 else ""
            cause = f"{width}x{height} pixels{of} declared, max_pixels is {self._max_pixels}{counted}"
            raise LoaderError("E-BOMB", cause)

    def full(self, data: bytes, info: ImageInfo | None = None) -> Pixels:
        """Decode the whole image, uint8 [height, width, 3], valid until the next call; raises as probe and window."""
        info = info or self.probe(data)
        return self.window(data, info, (0, 0, info.width, info.height))

    @staticmethod
    def _missing_end(data: bytes, header: jpeg.JpegHeader) -> LoaderError:
        # If the file decodes without a warning once the marker is put back, nothing else is missing.
        strict = importlib.import_module("penstock.pipelines.sample.decode_simplejpeg").decodes_strictly
        if header.ordinary and strict(data + jpeg.EOI):
            return LoaderError("E-EOI", "all rows are there but the end-of-image marker is missing")
        return LoaderError("E-TRUNC", "the JPEG has no end-of-image marker: it was cut short")

    @staticmethod
    def _orientation(data: bytes, kind: str, header: jpeg.JpegHeader | None) -> int:
        payload = jpeg.exif_payload(data, header) if header is not None else None
        if header is not None and payload is None:
            return 1
        from penstock.pipelines.sample import decode_pillow

        found = decode_pillow.exif_orientation(payload) if payload else decode_pillow.file_orientation(data, kind)
        return found if 1 <= found <= 8 else 1


def _refuse_stray_markers(data: bytes, header: jpeg.JpegHeader, warning: str | None) -> None:
    if warning is None or not jpeg.rules_out_stray_markers(warning, header):
        jpeg.check_markers(data, header)


def _decode_with_pillow(data: bytes, info: ImageInfo) -> Pixels:
    from penstock.pipelines.sample import decode_pillow

    if info.header is not None:
        return decode_pillow.decode_any_jpeg(data, info.header)
    sides = (info.width, info.height)
    stored = sides[::-1] if swaps_sides(info.orientation) else sides
    return decode_pillow.decode_any_image(data, info.format, stored)
