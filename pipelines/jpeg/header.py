"""JPEG headers, and windows: the part of a file that a crop needs.

ITU-T T.81 (JPEG), Annex B for the markers; F.2 for the order of MCUs in a baseline scan.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.pipelines.errors import LoaderError

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
_SOF0, _DHT, _JPG, _DAC = 0xC0, 0xC4, 0xC8, 0xCC
_RST0, _RST7, _SOI, _EOI, _TEM, _SOS, _APP0, _APP1, _APP14 = 0xD0, 0xD7, 0xD8, 0xD9, 0x01, 0xDA, 0xE0, 0xE1, 0xEE
_FRAMES = frozenset(range(_SOF0, 0xD0)) - {_DHT, _JPG, _DAC}
_BARE = frozenset((0x00, _TEM, *range(_RST0, _RST7 + 1), _SOI, _EOI, 0xFF))  # after 0xFF: no length follows
_FACTORS = {h << 4 | v: (h, v) for h in range(1, 5) for v in range(1, 5)}  # of sampling
_LUMA_FACTORS = frozenset(((1, 1), (2, 1), (1, 2), (2, 2), (4, 1)))
_EXIF = b"Exif\0\0"
# jerror.h, JWRN_*: what libjpeg tells and goes on after. All else that it says is an error.
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
    """What the markers before the first scan say. Sizes in pixels, offsets in bytes."""

    width: int
    height: int
    precision: int
    components: int
    sof: int  # last byte of the start-of-frame marker: 0xC0 baseline, 0xC2 progressive, ...
    sampling: tuple[tuple[int, int], ...]  # (horizontal, vertical) factors of each component
    height_offset: int  # of the 16-bit height in the frame header
    scan_offset: int  # of the first entropy-coded byte
    single_scan: bool  # the first scan holds all components
    segments: tuple[tuple[int, int, int], ...]  # (marker, start, end) of each segment before the scan, marker included

    @property
    def common(self) -> bool:
        """Whether every decoder takes it: 8-bit Huffman, grey or three components of a usual chroma sampling."""
        if self.sof > 0xC2 or self.precision != 8:
            return False
        if self.components == 1:
            return True
        luma, *chroma = self.sampling
        return self.components == 3 and luma in _LUMA_FACTORS and all(factors == (1, 1) for factors in chroma)

    @property
    def stoppable(self) -> bool:
        """Whether rows are coded top to bottom in one pass, so that decoding can stop below a crop."""
        return self.sof <= 0xC1 and self.single_scan


def parse_header(data: bytes) -> JpegHeader:
    """The header of a JPEG file whose first bytes are SOI.

    Raises LoaderError: E-TRUNC if the file ends before the first scan, E-CORRUPT if the markers make no sense,
    E-UNSUPPORTED for a height given after the scan (DNL), lossless and hierarchical coding.
    """
    position, size = 2, len(data)
    frame: tuple[int, int] | None = None  # marker, offset of its length field
    segments: list[tuple[int, int, int]] = []
    try:
        while True:
            marker = data[position + 1]
            if data[position] != 0xFF:
                raise LoaderError("E-CORRUPT", f"byte {position} of the JPEG header is no marker")
            if marker in _BARE:
                position = _after_bare(marker, position)
                continue
            length = data[position + 2] << 8 | data[position + 3]
            end = position + 2 + length
            if length < 2:
                raise LoaderError("E-CORRUPT", f"marker 0x{marker:02x} has a length of {length}")
            if end > size:
                raise IndexError  # as every read past the end does
            segments.append((marker, position, end))
            if marker == _SOS:
                break
            if marker in _FRAMES:
                if frame is not None:
                    raise LoaderError("E-CORRUPT", "the JPEG has two frame headers")
                frame = (marker, position + 2)
            position = end
    except IndexError:
        raise LoaderError("E-TRUNC", "the file ends inside the JPEG header") from None
    if frame is None:
        raise LoaderError("E-CORRUPT", "the JPEG has image data but no frame header")
    return _frame_header(data, frame, (position + 4, end), tuple(segments))


def _after_bare(marker: int, position: int) -> int:
    """Where the next marker of the header is due behind one that has no segment, or behind a fill byte."""
    if marker == 0xFF:  # fill byte, T.81 B.1.1.2
        return position + 1
    if marker == _EOI:
        raise LoaderError("E-CORRUPT", "the JPEG ends before any image data")
    if marker in (0x00, _SOI):
        raise LoaderError("E-CORRUPT", f"marker 0x{marker:02x} inside the JPEG header")
    return position + 2


def _frame_header(
    data: bytes, frame: tuple[int, int], scan: tuple[int, int], segments: tuple[tuple[int, int, int], ...]
) -> JpegHeader:
    marker, offset = frame
    scan_start, scan_end = scan
    length = data[offset] << 8 | data[offset + 1]
    if length < 8:
        raise LoaderError("E-CORRUPT", "the JPEG frame header is too short")
    precision, components = data[offset + 2], data[offset + 7]
    height, width = data[offset + 3] << 8 | data[offset + 4], data[offset + 5] << 8 | data[offset + 6]
    if length != 8 + 3 * components or components not in (1, 2, 3, 4) or width == 0:
        raise LoaderError("E-CORRUPT", "the JPEG frame header makes no sense")
    if height == 0:
        raise LoaderError("E-UNSUPPORTED", "the JPEG gives its height after the scan (DNL)")
    if marker not in (0xC0, 0xC1, 0xC2, 0xC9, 0xCA):
        raise LoaderError("E-UNSUPPORTED", f"lossless or hierarchical JPEG (SOF{marker - _SOF0})")
    if precision != 8:
        raise LoaderError("E-UNSUPPORTED", f"JPEG with {precision} bits a sample")
    if components == 2:
        raise LoaderError("E-UNSUPPORTED", "JPEG of two components, which have no colours")
    try:
        sampling = tuple([_FACTORS[code] for code in data[offset + 9 : offset + length : 3]])
    except KeyError:
        raise LoaderError("E-CORRUPT", "the JPEG has impossible sampling factors") from None
    single = scan_start < scan_end and data[scan_start] == components
    return JpegHeader(width, height, precision, components, marker, sampling, offset + 3, scan_end, single, segments)


def ends_properly(data: bytes, header: JpegHeader) -> bool:
    """Whether an end-of-image marker follows the scan (bytes after it are tolerated, as every decoder does)."""
    return data.endswith(EOI) or data.rfind(EOI, header.scan_offset) >= 0


def is_warning(text: str) -> bool:
    """Whether a message of libjpeg's tells of damage that it repaired: then all rows were written.

    The text is the only way to know. TurboJPEG keeps the last message, but says "warning" of an error that follows a
    warning, although the rows then hold what was in that memory before.
    """
    return text.startswith(_WARNINGS)


def is_header_warning(text: str) -> bool:
    """Whether a warning is about the markers before the scan."""
    return text.startswith(_HEADER_WARNINGS)


def proves_sound(warning: str, header: JpegHeader) -> bool:
    """Whether a decoder that warned so ("": not at all) has met no stray marker, so that check_markers need not look.

    The usual warning comes from stopping below a crop: "Corrupt JPEG data: 4711 extraneous bytes before marker 0xd9".
    """
    return not warning or (header.stoppable and warning.endswith("extraneous bytes before marker 0xd9"))


def check_markers(data: bytes, header: JpegHeader) -> bool:
    """Refuse a file whose markers do not lead from the first scan to the end of image (LoaderError E-CORRUPT).

    What libjpeg makes of a stray marker depends on the row at which it meets it, thus on the crop. Returns whether the
    end of image follows the first scan at once.
    """
    start = position = header.scan_offset
    codes = np.frombuffer(data, np.uint8, offset=start)
    following = codes[1:]
    begins = codes[:-1] == 0xFF
    np.minimum(begins.view(np.uint8), following, out=begins.view(np.uint8))  # "and": FF 00 is a stuffed byte
    if begins.size and following[first := begins.argmax()] == _EOI and begins[first]:
        return True  # one scan without restarts or fill: nearly every file
    begins &= following != 0xFF  # fill, T.81 B.1.1.2
    begins &= following >> 3 != _RST0 >> 3
    marks, in_scan, only_scan = begins.tobytes(), True, True
    while (found := marks.find(1, position - start)) >= 0:
        at = start + found
        marker = data[at + 1]
        if not in_scan and data[position:at].strip(b"\xff"):
            break
        if marker == _EOI:
            return only_scan
        if marker < _SOF0 or marker == _SOI or (marker == _SOS and header.stoppable):
            break
        position = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        in_scan, only_scan = marker == _SOS, False
    raise LoaderError("E-CORRUPT", f"the JPEG's markers do not lead to its end: stray bytes at {position}")


def rows_to_decode(header: JpegHeader, bottom: int) -> int:
    """How many rows a decoder must produce so that all rows above `bottom` come out bit-exact.

    Chroma upsampling of row r reads the chroma of the row pair below it, so one chroma row more than the crop is kept:
    two rows cover vertical sampling by 2.
    """
    return min(header.height, bottom + 2) if header.stoppable else header.height


def stop_below(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """The file with its frame height set to `rows`: any decoder stops there and never sees what follows."""
    if rows == header.height:
        return data
    at = header.height_offset
    return b"".join((data[:at], rows.to_bytes(2, "big"), data[at + 2 :]))


def strip_metadata(data: bytes, header: JpegHeader) -> bytes:
    """The file without EXIF, ICC and comments: only what decoding needs (JFIF and Adobe colour markers stay).

    Those two only when whole: libjpeg passes over shorter ones, Pillow's own parser takes offence.
    """
    whole = {_APP0: 4 + 14, _APP14: 4 + 12}
    keep = [
        data[start:end]
        for marker, start, end in header.segments
        if not (_APP0 <= marker <= 0xEF or marker == 0xFE) or end - start >= whole.get(marker, 1 << 20)
    ]
    return b"".join((SOI, *keep, data[header.scan_offset :]))


def exif_payload(data: bytes, header: JpegHeader) -> bytes | None:
    """The first EXIF block (starting with b"Exif"), if there is one."""
    for marker, start, end in header.segments:
        payload = data.find(_EXIF, start, min(end, start + 64)) if marker == _APP1 else -1
        if payload >= 0:
            return data[payload:end]
    return None
