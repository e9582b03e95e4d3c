"""Strips of JPEGs with restart markers: the part of an image that a crop needs, cut out as a separate JPEG.

A restart marker resets the entropy coder (ITU-T T.81, F.1.1.5), so the segments between the markers can be rearranged:
a header with the rectangle's size, then the rectangle's segments row by row, with their markers renumbered modulo 8.
The result is an ordinary JPEG that any decoder supports.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg.header import EOI, JpegHeader

_DRI, RST0, _EOI = 0xDD, 0xD0, 0xD9


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


class Cut(NamedTuple):
    """Describe a rectangle of segments and the pixels that it covers.

    Attributes:
        row: first row of MCUs.
        row_end: end of the rows of MCUs, exclusive.
        segment: first segment of each row.
        segment_end: end of the segments of each row, exclusive.
        x: left edge in the image, in pixels.
        y: upper edge in the image, in pixels.
        width: width in pixels.
        height: height in pixels.
    """

    row: int
    row_end: int
    segment: int
    segment_end: int
    x: int
    y: int
    width: int
    height: int


def mcu_size(header: JpegHeader) -> tuple[int, int]:
    """Return (width, height) of the MCU of a single-scan JPEG, in pixels; with one component it is one block."""
    if header.components == 1:
        return 8, 8
    return 8 * max(h for h, _ in header.sampling), 8 * max(v for _, v in header.sampling)


def segment_length(header: JpegHeader, min_pixels: int) -> int:
    """Return the fewest MCUs that divide a row of MCUs and are at least `min_pixels` wide, otherwise the whole row."""
    mcu_width, _ = mcu_size(header)
    row = -(-header.width // mcu_width)
    return next(n for n in range(1, row + 1) if row % n == 0 and (n * mcu_width >= min_pixels or n == row))


def restart_interval(data: bytes, header: JpegHeader) -> int:
    """Return how many MCUs the header declares between two restart markers; 0 for no restart markers."""
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
    """Return the file cut off at the restart marker after which a decoder that stops after `rows` rows needs no data.

    A decoder that stops warns about the data that it skips; with restart markers the warning looks like one about
    damage. A file without them, with too few, or with nothing to cut off is returned unchanged.
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


def plan_cut(geometry: StripGeometry, window: Window) -> Cut:
    """Find the segments that a crop (x, y, width, height, in pixels) needs, with neighbours for upsampling.

    Fancy upsampling (libjpeg, jdsample.c) mixes each chroma sample with the next one on a subsampled axis: there the
    crop needs one more pixel on either side. An MCU 8 pixels wide or high is not subsampled on that axis.
    """
    x, y, w, h = window
    margin_x, margin_y = int(geometry.mcu_width > 8), int(geometry.mcu_height > 8)
    step_x, step_y = geometry.segment_mcus * geometry.mcu_width, geometry.mcu_height
    segment, row = max(0, x - margin_x) // step_x, max(0, y - margin_y) // step_y
    segment_end = min(geometry.segments, -(-(x + w + margin_x) // step_x))
    row_end = min(geometry.rows, -(-(y + h + margin_y) // step_y))
    left, top = segment * step_x, row * step_y
    width = min(geometry.width, segment_end * step_x) - left
    height = min(geometry.height, row_end * step_y) - top
    return Cut(row, row_end, segment, segment_end, left, top, width, height)


def cut_jpeg(
    header: bytes, height_offset: int, scan: npt.NDArray[np.uint8], first_row: int, geometry: StripGeometry, cut: Cut
) -> bytes:
    """Make a separate JPEG from the rectangle `cut`.

    header: the image's bytes before its first entropy-coded one, with the frame's height and width at `height_offset`.
    scan: entropy-coded bytes of whole rows of MCUs, uint8, from `first_row` at least to the rectangle's last row,
    without the end-of-image marker. Raises LoaderError E-CORRUPT if `scan` does not have the restart markers that the
    geometry requires.
    """
    size = cut.height.to_bytes(2, "big") + cut.width.to_bytes(2, "big")
    start = header[:height_offset] + size + header[height_offset + 4 :]
    segments, at_end = geometry.segments, cut.row_end == geometry.rows
    bounds = np.concatenate(([0], segment_ends(scan), np.array([len(scan)] * at_end, np.int64)))
    above, needed = (cut.row - first_row) * segments, (cut.row_end - first_row) * segments
    if len(bounds) - 1 < needed or (at_end and len(bounds) - 1 > needed):
        raise LoaderError("E-CORRUPT", "the restart markers of this JPEG's strips do not match its size")
    begins = bounds[above:needed].reshape(-1, segments)[:, cut.segment]
    ends = bounds[above + 1 : needed + 1].reshape(-1, segments)[:, cut.segment : cut.segment_end]
    lengths = ends[:, -1] - begins
    if cut.segment_end - cut.segment == segments:
        body = bytearray(scan[begins[0] : ends[-1, -1]])
    else:
        body = bytearray().join([scan[a:b].data for a, b in zip(begins.tolist(), ends[:, -1].tolist(), strict=True)])
    # Each segment ends with its marker: renumber the markers of the rectangle, and make the last one an end of image.
    ahead = np.cumsum(lengths) - lengths
    joints = (ends - (begins - ahead)[:, None]).ravel()
    if at_end and cut.segment_end == segments:
        body += EOI
        joints[-1] += 2
    coded = np.frombuffer(body, np.uint8)
    coded[joints - 1] = RST0 | (np.arange(len(joints)) & 7)
    coded[-1] = _EOI
    return b"".join((start, body))
