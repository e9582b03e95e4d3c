"""The decode contract: the same pixels and the same refusals from every decoder.

- Always RGB, uint8, height x width x 3. Grey is repeated, palettes are resolved, alpha is dropped, CMYK and YCCK
  (inverted by Adobe or not) are converted as Pillow does, 16-bit samples are scaled (>> 8), animations give their first
  frame.
- The format is told by magic bytes: JPEG, PNG, WebP, BMP, GIF, whatever the file is called.
- EXIF orientation is ignored or applied as the pipeline says, on every decoder alike.
- A size above `max_pixels` is refused before memory is allocated; a file without its end is refused wherever it was
  cut.
- The chosen decoder decodes ordinary JPEGs (8 bits, Huffman, grey or YCbCr/RGB of a usual chroma sampling) with the
  accurate DCT and fancy upsampling, which makes all of them bit-exact. Everything else goes to Pillow, whichever
  decoder was chosen, so what is accepted never depends on the choice.
- Errors a decoder can repair by itself (libjpeg's warnings) are accepted, since Pillow cannot report them. Stray
  markers in the image data are refused: what libjpeg makes of them depends on the row at which it stops.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple, Protocol, cast

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import ImagePart, Pixels, StoredSize, Window
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.sample.formats import check_end, declared
from penstock.pipelines.sample.orientation import stored_window, swaps_sides, upright
from penstock.pipelines.spec import ImagePipeline


class JpegDecoder(Protocol):
    """Decodes ordinary JPEGs. An instance belongs to one thread: it may return a view of memory that it reuses."""

    name: str

    @property
    def warning(self) -> str:
        """What libjpeg warned of in the last image, "" if nothing or if the decoder has checked the markers itself."""
        ...

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        """The first `height` rows, uint8 [height, width, 3], valid until the next call; LoaderError E-CORRUPT."""
        ...

    def version(self) -> str:
        """Package and library versions, for records."""
        ...


# Fastest first: "auto" takes the first that works. simplejpeg leads because its wheel bundles the newest libjpeg-turbo.
_DECODERS: dict[str, tuple[str, str]] = {
    "simplejpeg": ("penstock.pipelines.sample.decode_simplejpeg", "SimplejpegDecoder"),
    "turbojpeg": ("penstock.pipelines.sample.decode_turbojpeg", "TurbojpegDecoder"),
    "pillow": ("penstock.pipelines.sample.decode_pillow", "PillowJpegDecoder"),
}
DECODER_NAMES = ("auto", *_DECODERS)


def choose_jpeg_decoder(name: str) -> tuple[JpegDecoder, str]:
    """The decoder called `name`, or the best there is for "auto", and a few words on why it was taken.

    Raises ValueError for an unknown name, LoaderError E-DEPENDENCY (with what to install) if it cannot be used here.
    """
    if name != "auto" and name not in _DECODERS:
        raise ValueError(f"decoder is one of {', '.join(DECODER_NAMES)}, not {name!r}")
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


class Probe(NamedTuple):
    """What is known of an image before decoding it; sides in pixels of the upright image, both above 0."""

    width: int
    height: int
    format: str
    orientation: int
    header: jpeg.JpegHeader | None  # of a JPEG


class ImageDecoder:
    """Decodes any supported image for one pipeline; belongs to one thread."""

    def __init__(self, pipeline: ImagePipeline, decoder: str = "auto") -> None:
        self._jpeg, self.reason = choose_jpeg_decoder(decoder)
        self.name = self._jpeg.name
        self._apply_exif = pipeline.exif == "apply"
        self._max_pixels = pipeline.max_pixels

    def version(self) -> str:
        """Versions of the JPEG decoder, for records."""
        return self._jpeg.version()

    def probe(self, data: bytes) -> Probe:
        """Format and size from the header alone; refuses what can be refused before decoding (LoaderError)."""
        kind, width, height = declared(data)
        header = None
        if kind == "JPEG":
            header = jpeg.parse_header(data)
            width, height = header.width, header.height
        if width < 1 or height < 1:
            raise LoaderError("E-CORRUPT", f"the {kind} declares a size of {width}x{height}")
        self._check_size(width, height)
        if header is None:
            check_end(data, kind)
        elif not jpeg.ends_properly(data, header):
            raise self._missing_end(data, header)
        orientation = self._orientation(data, kind, header) if self._apply_exif else 1
        if swaps_sides(orientation):
            width, height = height, width
        return Probe(width, height, kind, orientation, header)

    def window(self, data: bytes, probe: Probe, window: Window) -> Pixels:
        """The pixels of `window` (x, y, width, height in the upright image): uint8 [height, width, 3].

        A view that stays valid until the next call. Decodes no row below the window where the file allows it.
        Raises LoaderError E-CORRUPT, E-TRUNC or E-UNSUPPORTED.
        """
        x, y, w, h = stored_window(window, probe.width, probe.height, probe.orientation)
        header = probe.header
        if header is not None and header.common:
            rows = jpeg.rows_to_decode(header, y + h)
            pixels = self._jpeg.rgb(jpeg.stop_below(data, header, rows), rows, header.width)
            if not jpeg.proves_sound(self._jpeg.warning, header):
                jpeg.check_markers(data, header)
        else:
            pixels = _general(data, probe)
        return upright(pixels[y : y + h, x : x + w], probe.orientation)

    def stored(self, size: StoredSize) -> Probe:
        """As probe, of an image whose size is known without its bytes; LoaderError E-BOMB."""
        width, height, orientation = size
        self._check_size(width, height)
        if not self._apply_exif:
            return Probe(width, height, "", 1, None)
        sides = (height, width) if swaps_sides(orientation) else (width, height)
        return Probe(*sides, "", orientation, None)

    def part(self, part: ImagePart, probe: Probe, window: Window) -> Pixels:
        """The pixels of `window` (in the stored image), turned upright, from a part that holds it.

        A view that stays valid until the next call. Raises LoaderError E-CORRUPT.
        """
        x, y, w, h = window
        pixels = part.data
        if isinstance(pixels, bytes):
            pixels = self._jpeg.rgb(pixels, part.height, part.width)
            if self._jpeg.warning:
                raise LoaderError("E-CORRUPT", f"the stored part of this image is damaged: {self._jpeg.warning}")
        return upright(pixels[y - part.y : y - part.y + h, x - part.x : x - part.x + w], probe.orientation)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > self._max_pixels:
            raise LoaderError("E-BOMB", f"{width}x{height} pixels declared, max_pixels is {self._max_pixels}")

    def full(self, data: bytes, probe: Probe | None = None) -> Pixels:
        """The whole image, uint8 [height, width, 3], valid until the next call; raises as probe and window do."""
        known = probe or self.probe(data)
        return self.window(data, known, (0, 0, known.width, known.height))

    @staticmethod
    def _missing_end(data: bytes, header: jpeg.JpegHeader) -> LoaderError:
        # Only the marker is missing if the file decodes without a warning once it is put back.
        strict = importlib.import_module("penstock.pipelines.sample.decode_simplejpeg").decodes_strictly
        if header.common and strict(data + jpeg.EOI):
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


def _general(data: bytes, probe: Probe) -> Pixels:
    from penstock.pipelines.sample import decode_pillow

    if probe.header is not None:
        return decode_pillow.any_jpeg(data, probe.header)
    sides = (probe.width, probe.height)
    stored = sides[::-1] if swaps_sides(probe.orientation) else sides
    return decode_pillow.any_image(data, probe.format, stored)
