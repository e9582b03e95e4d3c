"""The layout of JPEGs with restart markers, which reset the entropy coder (ITU-T T.81, F.1.1.5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.jpeg.header import EOI, JpegHeader

_DRI, RST0 = 0xDD, 0xD0


class StripGeometry(NamedTuple):
    """Describe the layout of a JPEG with restart markers.

    Attributes:
        width: width of the image, in pixels.
        height: height of the image, in pixels.
        mcu_width: width of an MCU (minimum coded unit), in pixels.
        mcu_height: height of an MCU, in pixels.
        segment_mcus: MCUs between two restart markers; they divide a row of MCUs evenly.
    """

    width: int
    height: int
    mcu_width: int
    mcu_height: int
    segment_mcus: int

    @property
    def rows(self) -> int:
        """Number of rows of MCUs."""
        return -(-self.height // self.mcu_height)

    @property
    def segments(self) -> int:
        """Number of segments in a row of MCUs."""
        return -(-self.width // (self.mcu_width * self.segment_mcus))


def mcu_size(header: JpegHeader) -> tuple[int, int]:
    """Return (width, height) of the MCU of a single-scan JPEG, in pixels; with one component it is one block."""
    if header.components == 1:
        return 8, 8
    return 8 * max(h for h, _ in header.sampling), 8 * max(v for _, v in header.sampling)


def segment_length(header: JpegHeader, min_pixels: int) -> int:
    """Return the smallest number of MCUs that divides a row and is at least `min_pixels` wide; else the whole row."""
    mcu_width, _ = mcu_size(header)
    row = -(-header.width // mcu_width)
    return next(n for n in range(1, row + 1) if row % n == 0 and (n * mcu_width >= min_pixels or n == row))


def restart_interval(data: bytes, header: JpegHeader) -> int:
    """Return the number of MCUs between two restart markers that the header declares; 0 for no restart markers."""
    found = 0
    for marker, start, end in header.segments:
        if marker == _DRI and end - start == 6:
            found = int.from_bytes(data[start + 4 : end], "big")
    return found


def segment_ends(scan: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return where segments of entropy-coded bytes end: the offsets directly after the restart markers."""
    escapes = np.flatnonzero(scan[:-1] == 0xFF)
    ends: npt.NDArray[np.int64] = escapes[(scan[escapes + 1] & 0xF8) == RST0] + 2
    return ends


def end_at_restart(data: bytes, header: JpegHeader, rows: int) -> bytes:
    """Return the file truncated at the first restart marker that a decoder of the upper `rows` rows does not read past.

    A decoder that stops early warns about the data that it skips; with restart markers this looks like a warning about
    damage. A file without restart markers, with too few, or with nothing to cut off is returned unchanged.
    """
    interval = restart_interval(data, header)
    if not interval or not header.stoppable or rows == header.height:
        return data
    width, height = mcu_size(header)
    needed = -(-(-(-rows // height) * -(-header.width // width)) // interval)
    ends = segment_ends(np.frombuffer(data, np.uint8, offset=header.scan_offset))
    if len(ends) < needed:
        return data
    return data[: header.scan_offset + int(ends[needed - 1]) - 2] + EOI
