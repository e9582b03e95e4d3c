"""Reads and checks JPEG headers and markers, and cuts a file down to the rows that a crop needs.

ITU-T T.81 (JPEG): Annex B for the markers, F.2 for the order of MCUs in a baseline scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.pipelines.errors import LoaderError

SOI, EOI, _NEXT_SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_SOF0, _DHT, _JPG, _DAC = 0xC0, 0xC4, 0xC8, 0xCC
_RST0, _RST7, _SOI, _EOI, _TEM, _SOS, _APP0, _APP1, _APP14 = 0xD0, 0xD7, 0xD8, 0xD9, 0x01, 0xDA, 0xE0, 0xE1, 0xEE
_FRAMES = frozenset(range(_SOF0, 0xD0)) - {_DHT, _JPG, _DAC}
_BARE = frozenset((0x00, _TEM, *range(_RST0, _RST7 + 1), _SOI, _EOI, 0xFF))  # bytes after 0xFF without a length field
_FACTORS = {h << 4 | v: (h, v) for h in range(1, 5) for v in range(1, 5)}  # sampling factors by their byte
_LUMA_FACTORS = frozenset(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1)))
_EXIF = b"Exif\0\0"
_EXTRANEOUS = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_BEHIND_FILL = re.compile(rb"[^\xff]")
# More markers than this, before the image data or after it, are junk: walking 64 MB of them would take half a minute.
# Metadata comes in segments of up to 64 kB, so only 650 MB of metadata would need this many.
_MAX_MARKERS = 10_000
_SEARCHED_BYTES = 1 << 16  # searched for a marker per step, so that the arrays stay small
# A progressive decoder visits every block in each scan, even an empty one: 0.2 ms per megapixel. Encoders write 10
# scans (libjpeg), at most about 20 (mozjpeg). An image of max_pixels may have 32, a smaller one more, up to the 500 of
# libjpeg-turbo's own TJFLAG_LIMITSCANS.
_USUAL_SCANS, _MAX_SCANS = 32, 500
# How libjpeg's warnings begin (jerror.h, JWRN_*). It repairs the damage that it warns about; other messages are errors.
_HEADER_WARNINGS = (
    "Unknown Adobe color transform code ",
    "Warning: unknown JFIF revision number ",
    "Corrupt JPEG data: bad ICC marker",
)
_WARNINGS = (
    *_HEADER_WARNINGS,
    "Corrupt JPEG data: ",
    "Premature end of JPEG file",
    "Inconsistent progression sequence for component ",
    "Invalid SOS parameters for sequential JPEG",
    "Application transferred too many scanlines",
)


class JpegHeader(NamedTuple):
    """Contents of the markers before the first scan of a JPEG with 8 bits per sample.

    Attributes:
        width: width of the image, in pixels.
        height: height of the image, in pixels.
        components: number of components: 1 grey, 3 colour, 4 CMYK or YCCK.
        sof: second byte of the start-of-frame marker: 0xC0 baseline, 0xC2 progressive.
        sampling: (horizontal, vertical) sampling factors of each component.
        height_offset: offset of the height (16 bits) in the frame header, in bytes.
        scan_offset: offset of the first scan's entropy-coded data, in bytes.
        single_scan: whether the first scan contains all components.
        segments: (marker, start, end) of each segment before the entropy-coded data, in bytes; it starts at its marker.
    """

    width: int
    height: int
    components: int
    sof: int
    sampling: tuple[tuple[int, int], ...]
    height_offset: int
    scan_offset: int
    single_scan: bool
    segments: tuple[tuple[int, int, int], ...]

    @property
    def ordinary(self) -> bool:
        """Whether every decoder supports it: Huffman coding, grey or three components with a usual chroma sampling."""
        if self.sof > 0xC2:
            return False
        if self.components == 1:
            return True
        luma, *chroma = self.sampling
        return self.components == 3 and luma in _LUMA_FACTORS and all(factors == (1, 1) for factors in chroma)

    @property
    def stoppable(self) -> bool:
        """Whether rows are coded from top to bottom in one scan, so that decoding can stop below a crop."""
        return self.sof <= 0xC1 and self.single_scan


def parse_header(data: bytes) -> JpegHeader:
    """Parse the header of a JPEG file whose first two bytes are SOI.

    Raises LoaderError: E-TRUNC if the file ends before the first scan, E-CORRUPT if the markers are invalid,
    E-UNSUPPORTED for two components, more than 8 bits per sample, a height given after the scan (DNL), lossless and
    hierarchical coding.
    """
    position, size = 2, len(data)
    frame: tuple[int, int] | None = None  # marker, offset of its length field
    segments: list[tuple[int, int, int]] = []
    try:
        for _ in range(_MAX_MARKERS):
            marker = data[position + 1]
            if data[position] != 0xFF:
                raise LoaderError("E-CORRUPT", f"byte {position} of the JPEG header is not a marker")
            if marker in _BARE:
                position = _skip_bare_marker(data, position)
                continue
            length = data[position + 2] << 8 | data[position + 3]
            end = position + 2 + length
            if length < 2:
                raise LoaderError("E-CORRUPT", f"marker 0x{marker:02x} has a length of {length}")
            if end > size:
                raise IndexError  # like every read past the end
            segments.append((marker, position, end))
            if marker == _SOS:
                break
            if marker in _FRAMES:
                if frame is not None:
                    raise LoaderError("E-CORRUPT", "the JPEG has two frame headers")
                frame = (marker, position + 2)
            position = end
        else:
            raise _too_many_markers()
    except IndexError:
        raise LoaderError("E-TRUNC", "the file ends inside the JPEG header") from None
    if frame is None:
        raise LoaderError("E-CORRUPT", "the JPEG has image data but no frame header")
    return _parse_frame(data, frame, (position + 4, end), tuple(segments))


def _too_many_markers() -> LoaderError:
    return LoaderError("E-CORRUPT", f"the JPEG has more than {_MAX_MARKERS:,} markers in a row")


def _skip_bare_marker(data: bytes, position: int) -> int:
    """Return where the next marker must be after a marker without a length, which has its 0xFF byte at `position`.

    Raises IndexError if nothing follows fill bytes (T.81 B.1.1.2).
    """
    marker = data[position + 1]
    if marker == 0xFF:
        found = _BEHIND_FILL.search(data, position)
        if found is None:
            raise IndexError
        return found.start() - 1
    if marker == _EOI:
        raise LoaderError("E-CORRUPT", "the JPEG ends before any image data")
    if marker in (0x00, _SOI):
        raise LoaderError("E-CORRUPT", f"marker 0x{marker:02x} inside the JPEG header")
    return position + 2


def _parse_frame(
    data: bytes, frame: tuple[int, int], scan: tuple[int, int], segments: tuple[tuple[int, int, int], ...]
) -> JpegHeader:
    """Parse the frame header.

    frame: its marker and the offset of its length field; scan: start and end of the scan header's content.
    """
    marker, offset = frame
    scan_start, scan_end = scan
    length = data[offset] << 8 | data[offset + 1]
    if length < 8:
        raise LoaderError("E-CORRUPT", "the JPEG frame header is too short")
    precision, components = data[offset + 2], data[offset + 7]
    height, width = data[offset + 3] << 8 | data[offset + 4], data[offset + 5] << 8 | data[offset + 6]
    if length != 8 + 3 * components or components not in (1, 2, 3, 4) or width == 0:
        raise LoaderError("E-CORRUPT", "the JPEG frame header is invalid")
    if height == 0:
        raise LoaderError("E-UNSUPPORTED", "the JPEG gives its height after the scan (DNL)")
    if marker not in (0xC0, 0xC1, 0xC2, 0xC9, 0xCA):
        raise LoaderError("E-UNSUPPORTED", f"lossless or hierarchical JPEG (SOF{marker - _SOF0})")
    if precision != 8:
        raise LoaderError("E-UNSUPPORTED", f"JPEG with {precision} bits per sample")
    if components == 2:
        raise LoaderError("E-UNSUPPORTED", "JPEG with two components, for which no colours are defined")
    try:
        sampling = tuple([_FACTORS[code] for code in data[offset + 9 : offset + length : 3]])
    except KeyError:
        raise LoaderError("E-CORRUPT", "the JPEG has impossible sampling factors") from None
    single = scan_start < scan_end and data[scan_start] == components
    return JpegHeader(width, height, components, marker, sampling, offset + 3, scan_end, single, segments)


def has_end_marker(data: bytes, header: JpegHeader) -> bool:
    """Return whether an end-of-image marker follows the scan; bytes after it are allowed, as in decoders."""
    return data.endswith(EOI) or data.rfind(EOI, header.scan_offset) >= 0


def is_warning(text: str) -> bool:
    """Return whether libjpeg's message `text` is about damage that it repaired: then it has written all rows.

    Only the text shows this. TurboJPEG keeps the last message, but reports an error after a warning as a warning,
    although some rows of the memory then still have their previous content.
    """
    return text.startswith(_WARNINGS)


def is_header_warning(text: str) -> bool:
    """Return whether libjpeg's warning `text` is about the markers before the scan."""
    return text.startswith(_HEADER_WARNINGS)


def reports_repair(warning: str, header: JpegHeader, rows: int, num_bytes: int) -> bool:
    """Return whether libjpeg's first warning ("" for none) means that it filled in image data above row `rows`.

    More data than needed, below the crop or before the image's end, is not a repair. But if more than a sixteenth of
    the file's `num_bytes` is left, the data were misread, for example Huffman data labelled as arithmetic.
    """
    found = _EXTRANEOUS.match(warning)
    if found is None:
        return is_warning(warning) and not is_header_warning(warning)
    left, marker = int(found[1]), int(found[2], 16)
    if marker == _EOI:
        return rows == header.height and left > (num_bytes - header.scan_offset) // 16
    return not (header.stoppable and marker >> 3 != _RST0 >> 3)


def rules_out_stray_markers(warning: str, header: JpegHeader) -> bool:
    """Return whether libjpeg's warning ("" for none) proves that there is no stray marker, without check_markers.

    The usual warning comes from stopping below a crop: "Corrupt JPEG data: 4711 extraneous bytes before marker 0xd9".
    """
    return not warning or (header.stoppable and warning.endswith("extraneous bytes before marker 0xd9"))


def check_markers(data: bytes, header: JpegHeader) -> bool:
    """Follow the markers from the first scan to the end of the image. Raises LoaderError E-CORRUPT if this fails.

    Returns whether the end of the image directly follows the first scan. Stray markers are rejected because libjpeg's
    result depends on the row at which it meets one, and so on the crop.
    """
    return sum(1 for _ in _markers(data, header)) == 1


def check_scans(data: bytes, header: JpegHeader, max_pixels: int) -> None:
    """Raise LoaderError E-BOMB if a JPEG has so many scans that decoding it would take minutes.

    An image of `max_pixels` may have _USUAL_SCANS, a smaller one proportionally more, up to _MAX_SCANS. Also raises the
    errors of check_markers.
    """
    allowed = min(_USUAL_SCANS * max_pixels // (header.width * header.height), _MAX_SCANS)
    if header.stoppable or data.count(_NEXT_SCAN, header.scan_offset) < allowed:  # may count thumbnails too
        return
    scans = 1
    for marker in _markers(data, header):
        scans += marker == _SOS
        if scans > allowed:
            cause = f"more than {allowed} scans of {header.width}x{header.height} pixels; encoders write about ten"
            raise LoaderError("E-BOMB", cause, fix="re-encode it (jpegtran -progressive) or remove the file")


def _markers(data: bytes, header: JpegHeader) -> Iterator[int]:
    """Yield the markers after the first scan up to the image's end, without restarts; errors as in check_markers."""
    position, in_scan = header.scan_offset, True
    for _ in range(_MAX_MARKERS):
        at = _next_marker(data, position)
        if at < 0 or (not in_scan and data[position:at].strip(b"\xff")):
            break
        marker = data[at + 1]
        if marker != _EOI and (marker < _SOF0 or marker == _SOI or (marker == _SOS and header.stoppable)):
            break
        yield marker
        if marker == _EOI:
            return
        position = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        in_scan = marker == _SOS
    else:
        raise _too_many_markers()
    raise LoaderError("E-CORRUPT", f"the JPEG's markers do not lead to its end: stray bytes at {position}")


def _next_marker(data: bytes, start: int) -> int:
    """Return where the next marker from `start` on begins, restarts excluded; -1 if there is none."""
    for position in range(start, len(data) - 1, _SEARCHED_BYTES):
        codes = np.frombuffer(data, np.uint8, min(_SEARCHED_BYTES + 1, len(data) - position), position)
        following = codes[1:]
        begins = codes[:-1] == 0xFF
        flags = begins.view(np.uint8)
        np.minimum(flags, following, out=flags)  # an "and": FF 00 is a data byte, not a marker
        if not begins[begins.argmax()]:
            continue  # the usual case in a scan without restart markers
        begins &= following != 0xFF  # fill bytes, T.81 B.1.1.2
        begins &= following >> 3 != _RST0 >> 3
        if begins[first := begins.argmax()]:
            return position + int(first)
    return -1


def rows_to_decode(header: JpegHeader, bottom: int) -> int:
    """Return how many rows a decoder must produce so that all rows above `bottom` come out bit-exact.

    Upsampling reads one row of chroma below the crop's last row. That is at most two rows of pixels, since chroma is at
    most halved vertically.
    """
    return min(header.height, bottom + 2) if header.stoppable else header.height


def stop_below(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """Return the file with the height in its header set to `rows`: any decoder stops there and skips what follows."""
    if rows == header.height:
        return data
    at = header.height_offset
    return b"".join((data[:at], rows.to_bytes(2, "big"), data[at + 2 :]))


def strip_metadata(data: bytes, header: JpegHeader, *, colour: bool = True) -> bytes:
    """Return the file without EXIF, ICC profile and comments, but with the JFIF and Adobe markers (the colour space).

    Incomplete JFIF and Adobe markers are removed too: libjpeg ignores them, Pillow's own parser fails on them. Without
    `colour` all JFIF and Adobe markers are removed: then libjpeg can only warn about image data.
    """
    whole = {_APP0: 4 + 14, _APP14: 4 + 12} if colour else {}
    keep = []
    for marker, start, end in header.segments:
        is_metadata = _APP0 <= marker <= 0xEF or marker == 0xFE
        if not is_metadata or end - start >= whole.get(marker, 1 << 20):
            keep.append(data[start:end])
    return b"".join((SOI, *keep, data[header.scan_offset :]))


def find_exif(data: bytes, header: JpegHeader) -> bytes | None:
    """Return the first EXIF block, from the bytes b"Exif" on, or None."""
    for marker, start, end in header.segments:
        payload = data.find(_EXIF, start, min(end, start + 64)) if marker == _APP1 else -1
        if payload >= 0:
            return data[payload:end]
    return None
