"""Formats by magic bytes: declared sizes, and errors for files truncated anywhere."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from odd_images import OddImage, corpus, encoded, scene
from PIL import Image

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.formats import check_end, read_format

OTHERS = [odd for odd in corpus() if odd.code is None and not odd.data.startswith(b"\xff\xd8")]


def code_of(data: bytes) -> str | None:
    try:
        check_end(data, read_format(data).name)
    except LoaderError as error:
        return error.code
    return None


@pytest.mark.parametrize("odd", OTHERS, ids=lambda odd: odd.name)
def test_format_and_size_equal_pillows(odd: OddImage) -> None:
    with Image.open(io.BytesIO(odd.data)) as image:
        assert read_format(odd.data) == (image.format, *image.size)
    assert odd.reference is not None
    assert read_format(odd.data)[1:] == odd.reference.shape[1::-1]
    check_end(odd.data, read_format(odd.data).name)


@pytest.mark.parametrize("odd", [o for o in OTHERS if not o.name.endswith("_tail")], ids=lambda odd: odd.name)
def test_a_file_cut_anywhere_is_truncated(odd: OddImage) -> None:
    size = len(odd.data)
    cuts = {*range(min(64, size)), *range(0, size, max(1, size // 150)), *range(max(0, size - 40), size)}
    assert {cut: code_of(odd.data[:cut]) for cut in cuts if cut > 0} == {cut: "E-TRUNC" for cut in cuts if cut > 0}
    assert code_of(b"") == "E-EMPTY"


def gif(frame: tuple[int, int, int, int], screen: tuple[int, int] = (8, 6), extra: bytes = b"") -> bytes:
    """Return a GIF with one frame (left, top, width, height) of a single colour."""
    data = encoded(Image.fromarray(np.zeros(frame[3:1:-1], np.uint8)).convert("P"), "GIF")
    at = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", *frame[2:]))
    data = data[:at] + extra + b"\x2c" + struct.pack("<HHHH", *frame) + data[at + 9 :]
    return data[:6] + struct.pack("<HH", *screen) + data[10:]


@pytest.mark.parametrize(
    ("frame", "size"),
    [((0, 0, 8, 6), (8, 6)), ((2, 1, 3, 3), (8, 6)), ((4, 0, 10, 3), (14, 6)), ((0, 0, 2, 9), (8, 9))],
)
def test_a_gif_frame_widens_the_screen_as_in_pillow(frame: tuple[int, int, int, int], size: tuple[int, int]) -> None:
    data = gif(frame)
    assert read_format(data) == ("GIF", *size)
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == size


def test_gif_blocks_that_look_like_others_are_skipped() -> None:
    comment = b"!\xfe\x05\x2c;\0;,\x03;;;\0" + b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0" + b"\0\0"
    data = gif((0, 0, 8, 6), extra=comment)
    assert code_of(data) is None
    assert read_format(data) == ("GIF", 8, 6)
    assert {code_of(data[:cut]) for cut in range(1, len(data))} == {"E-TRUNC"}


@pytest.mark.parametrize(("bits", "width", "height"), [(1, 19, 3), (8, 19, 3), (24, 19, 3), (24, 1, 1)])
def test_an_os2_bitmap_has_16_bit_sides(bits: int, width: int, height: int) -> None:
    palette = b"\0\0\0\xff\xff\xff" * (2 ** (bits - 1)) if bits < 24 else b""
    rows = bytes((width * bits + 31) // 32 * 4 * height)
    start = 14 + 12 + len(palette)
    head = (
        b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + struct.pack("<IHHHH", 12, width, height, 1, bits)
    )
    data = head + palette + rows
    assert read_format(data) == ("BMP", width, height)
    assert code_of(data) is None
    assert {code_of(data[:end]) for end in range(2, len(data))} == {"E-TRUNC"}
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (width, height)


def test_only_pillow_knows_where_run_lengths_end() -> None:
    whole = encoded(Image.fromarray(scene(6, 8)).quantize(16), "BMP")
    run_length = whole[:30] + struct.pack("<I", 1) + whole[34:]
    assert code_of(run_length[:-10]) is None
    assert code_of(whole[:-10]) == "E-TRUNC"
