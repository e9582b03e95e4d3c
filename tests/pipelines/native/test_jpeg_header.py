"""Headers read by the native library, compared with the Python path."""

from __future__ import annotations

import ctypes
import struct

import jpeg_parts as jp
import pytest
import simplejpeg
from jpeg_parts import Component
from jpeg_samples import SAMPLINGS, stoppable, unstoppable
from native_windows import file_window, info
from odd_images import JFIF, corpus, exif_segment, jpeg, scene

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.jpeg.strips import mcu_size, restart_interval
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

PLAIN = jpeg(scene(48, 64), subsampling=2)
UPRIGHT = ImagePipeline(exif="apply")


@pytest.mark.parametrize("name", [*stoppable(), *(name for name in unstoppable() if "progressive" in name)])
def test_headers_equal_those_of_python(native: ctypes.CDLL, name: str) -> None:
    data = {**stoppable(), **unstoppable()}[name]
    found, header = info(native, data), parse_header(data)
    assert found is not None
    assert (found.width, found.height, found.components) == (header.width, header.height, header.components)
    assert (found.mcu_width, found.mcu_height) == mcu_size(header)
    assert found.restart_interval == restart_interval(data, header)
    assert (found.height_offset, found.scan_offset) == (header.height_offset, header.scan_offset)
    assert info(native, data[: header.scan_offset]) == found  # without its scan
    assert info(native, data[: header.scan_offset - 1]) is None


def test_several_scans_of_a_baseline_image_are_unsupported(native: ctypes.CDLL) -> None:
    taken = {name for name, data in unstoppable().items() if info(native, data) is not None}
    assert set(unstoppable()) - taken == {"scan_a_component"}


def test_most_unusual_but_valid_images_are_supported(native: ctypes.CDLL) -> None:
    taken = {odd.name for odd in corpus() if odd.code is None and info(native, odd.data)}
    assert {"jpeg_bare", "jpeg_odd_ids", "jpeg_adobe_ycc", "jpeg_mpo", "jpeg_icc_large", "jpeg_comment"} <= taken
    refused = {"jpeg_adobe_rgb", "jpeg_rgb_ids", "jpeg_cmyk_pillow", "jpeg_ycck", "jpeg_no_dht"}
    assert not refused & taken


# ---- orientation


def orientation(data: bytes) -> int:
    """Return the orientation that Python reads; 1 for a file that it rejects."""
    try:
        return ImageDecoder(UPRIGHT).probe(data).orientation
    except LoaderError:
        return 1


def exif(entries: list[bytes], order: str = "<", *, offset: int = 8, rest: bytes = bytes(4)) -> bytes:
    """Return the file with an EXIF block of these directory entries."""
    tiff = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, offset) + bytes(offset - 8)
    block = tiff + struct.pack(f"{order}H", len(entries)) + b"".join(entries) + rest
    return jp.insert(PLAIN, jp.segment(jp.APP1, b"Exif\0\0" + block))


def entry(tag: int, kind: int, count: int, value: int, order: str = "<") -> bytes:
    """Return an entry of a directory; a SHORT is in the first half of its field."""
    field = struct.pack(f"{order}HH", value, 0) if kind == 3 and count == 1 else struct.pack(f"{order}I", value)
    return struct.pack(f"{order}HHI", tag, kind, count) + field


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("value", range(10))
def test_orientation(native: ctypes.CDLL, order: str, value: int) -> None:
    text, turned = entry(0x010F, 2, 5, 60, order), entry(0x0112, 3, 1, value, order)
    for entries in ([turned], [text, turned], [turned, text]):
        data = exif(entries, order, rest=bytes(80))
        found = info(native, data)
        assert found is not None
        assert not found.exif_unsupported
        assert found.orientation == orientation(data) == (value if 1 <= value <= 8 else 1)


@pytest.mark.parametrize(
    "data",
    [
        exif([entry(0x0112, 3, 1, 6), entry(0x0112, 3, 1, 3)]),
        exif([entry(0x0112, 4, 1, 6)]),
        exif([entry(0x0112, 3, 2, 6)]),
        exif([entry(0x010F, 2, 5000, 60), entry(0x0112, 3, 1, 6)]),
        exif([entry(0x010F, 2, 5000, 8), entry(0x0112, 3, 1, 6)]),
        exif([entry(0x010F, 2, 5, 2**31), entry(0x0112, 3, 1, 6)]),
        exif([entry(0x0112, 3, 1, 6)] * 3, rest=b"")[: len(PLAIN)],
        jp.insert(PLAIN, jp.segment(jp.APP1, b"Exif\0\0II*\0\x08\0\0\0\x09\0")),
        jp.insert(PLAIN, jp.segment(jp.APP1, b"Exif\0\0II*\0\xff\xff\xff\xff")),
        jp.insert(PLAIN, jp.segment(jp.APP1, b"Exif\0\0II+\0\x08\0\0\0\0\0\0\0\0\0")),
        jp.insert(PLAIN, jp.segment(jp.APP1, b"http:" + exif_segment(6)[4:])),
        exif([*[entry(0x010F, 2, 4, 0)] * 11, entry(0x0112, 3, 1, 6)[:-2]], rest=b""),
        # the number of entries is half in the segment, and the following bytes read as meaningless entries
        jp.insert(PLAIN, jp.segment(jp.APP1, b"Exif\0\0MM\0*\0\0\0\x08\0") + jp.segment(jp.COM, bytes(3200))),
    ],
)
def test_an_unusual_exif_block_is_left_to_python(native: ctypes.CDLL, data: bytes) -> None:
    found = info(native, data)
    assert found is None or found.exif_unsupported


def test_the_first_exif_block_counts(native: ctypes.CDLL) -> None:
    for first, second in ((6, 3), (3, 6)):
        data = jp.insert(jp.insert(PLAIN, exif_segment(second)), exif_segment(first))
        found = info(native, data)
        assert found is not None
        assert found.orientation == orientation(data) == first


@pytest.mark.parametrize("early", [1, 2])
def test_an_exif_block_that_begins_in_its_segments_length(native: ctypes.CDLL, early: int) -> None:
    """Python searches a segment from its marker on, so that a length of 0x..45 or 0x4578 may be the "E" or "Ex"."""
    size = (0x0145, 0x4578)[early - 1]
    block = exif_segment(6)[4 + early :]
    data = jp.insert(PLAIN, struct.pack(">BBH", 0xFF, jp.APP1, size) + block + bytes(size - 2 - len(block)))
    found = info(native, data)
    assert orientation(data) == 6
    assert found is None or found.exif_unsupported


# ---- unsupported headers


def changed(marker: int, at: int, value: int, data: bytes = PLAIN) -> bytes:
    """Return the file with byte `at` of the first segment of a kind changed; 4 is the first after its length."""
    out = bytearray(data)
    out[next(start for found, start, _ in jp.segments(data) if found == marker) + at] = value
    return bytes(out)


ICC = b"ICC_PROFILE\0"
STEEP = b"".join(bytes([0x10 | table]) + b"\x08\0" * 64 for table in (0, 1))  # steps of 2048


def chunk(number: int, count: int) -> bytes:
    """Return a part of a colour profile."""
    return jp.segment(jp.APP2, ICC + bytes([number, count]) + bytes(40))


ADOBE = b"Adobe\0\x64\0\0\0\0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        jp.SOI,
        b"\xff\xd9" + PLAIN[2:],
        PLAIN[:20],
        changed(jp.DQT, 4, 0x04),
        changed(jp.DQT, 4, 0x20),
        changed(jp.DQT, 5, 0),
        changed(jp.DHT, 4, 0x05),
        changed(jp.DHT, 4, 0x20),
        changed(jp.DHT, 5, 3),
        changed(jp.DHT, 20, 255),
        changed(jp.DHT, 21, 16),
        changed(jp.SOF0, 4, 12),
        changed(jp.SOF0, 9, 4),
        changed(jp.SOF0, 9, 1),
        changed(jp.SOF0, 11, 0x31),
        changed(jp.SOF0, 11, 0x02),
        changed(jp.SOF0, 12, 7),
        changed(jp.SOF0, 13, 1),
        changed(jp.SOF0, 14, 0x22),
        changed(jp.SOS, 4, 2),
        changed(jp.SOS, 5, 9),
        changed(jp.SOS, 6, 0x22),
        changed(jp.SOS, 6, 0x40),
        changed(jp.SOS, 11, 1),
        changed(jp.SOS, 12, 62),
        changed(jp.SOS, 13, 1),
        changed(jp.APP0, 9, 2),
        jp.with_frame(PLAIN, size=(0, 48)),
        jp.with_frame(PLAIN, size=(64, 0)),
        jp.with_frame(PLAIN, marker=0xC2),
        jp.with_frame(PLAIN, marker=0xC9),
        jp.remove_segments(PLAIN, jp.DQT),
        jp.remove_segments(PLAIN, jp.DHT),
        jp.remove_segments(PLAIN, jp.SOF0),
        jp.insert(PLAIN, jp.segment(0xDD, b"\0\0\0")),
        jp.insert(PLAIN, jp.segment(0xCC, b"\0\0")),
        jp.insert(PLAIN, jp.segment(jp.APP14, ADOBE + b"\2")),
        jp.insert(PLAIN, jp.segment(jp.APP14, ADOBE + b"\0")),
        jp.insert(PLAIN, jp.segment(jp.APP2, ICC + b"\2\2" + bytes(40))),
        jp.insert(PLAIN, jp.segment(jp.APP2, ICC + b"\1\2" + bytes(40))),
        jp.insert(PLAIN, chunk(2, 2) + chunk(1, 2)),
        jp.insert(PLAIN, chunk(1, 2) + chunk(1, 2)),
        jp.insert(PLAIN, chunk(1, 1) + chunk(2, 2)),
        jp.insert(PLAIN, chunk(1, 2) + chunk(2, 3)),
        jp.insert(PLAIN, jp.segment(jp.APP2, ICC + b"\1\1")),
        jp.insert(PLAIN, jp.segment(jp.DHT, b"\x10" + bytes(16))),
        jp.insert(PLAIN, jp.segment(jp.COM, b"") * 2500),
        jp.insert(PLAIN, PLAIN[PLAIN.index(b"\xff\xc0") : PLAIN.index(b"\xff\xc4")]),
        jp.insert(jp.remove_segments(PLAIN, jp.DQT), jp.segment(jp.DQT, STEEP)),
        jp.insert(PLAIN, jp.segment(jp.DHT, b"\x10" + bytes([0] * 14 + [200, 100]) + bytes(300))),
        PLAIN.replace(b"\xff\xc0\0\x11", b"\xff\xc0\0\x12").replace(b"\3\x11\1\xff", b"\3\x11\1\0\xff"),
        jp.insert(PLAIN, b"\xff\xd0"),
        jp.insert(PLAIN, b"\xff\xe5\0\1"),
    ],
)
def test_unsupported_headers(native: ctypes.CDLL, data: bytes) -> None:
    assert info(native, PLAIN) is not None
    assert info(native, data) is None


def test_chunks_of_a_profile_in_order_are_supported(native: ctypes.CDLL) -> None:
    for count in (1, 2, 3):
        assert info(native, jp.insert(PLAIN, b"".join(chunk(n + 1, count) for n in range(count)))) is not None


@pytest.mark.parametrize("length", range(1, 17))
def test_a_code_of_all_ones_is_unsupported(native: ctypes.CDLL, length: int) -> None:
    """T.81 C.2 forbids it, because such bits fill up the last byte. libjpeg refuses it as well."""

    def table(of_last_length: int) -> bytes:
        """Codes 0, 10, 110, ...: one of each length below the last."""
        counts = bytes([*[1] * (length - 1), of_last_length, *[0] * (16 - length)])
        return jp.insert(PLAIN, jp.segment(jp.DHT, b"\x10" + counts + bytes(sum(counts))))

    assert info(native, table(1)) is not None
    assert info(native, table(2)) is None


def test_wide_quantisers_and_unusual_component_numbers(native: ctypes.CDLL) -> None:
    tables = bytearray()
    for found, start, end in jp.segments(PLAIN):
        if found == jp.DQT:
            for at in range(start + 4, end, 65):
                wide = b"".join(bytes([0, step]) for step in PLAIN[at + 1 : at + 65])
                tables += jp.segment(jp.DQT, bytes([0x10 | PLAIN[at]]) + wide)
    data = jp.insert(jp.remove_segments(PLAIN, jp.DQT), bytes(tables))
    pixels = file_window(native, data, (0, 0, 64, 48))
    assert pixels is not None
    assert (pixels == simplejpeg.decode_jpeg(PLAIN, "RGB")).all()
    assert info(native, data.replace(bytes(tables[5:9]), bytes([tables[5], 0, 0, 0]), 1)) is None
    for ids in (b"\1\2\3", b"\0\1\2", b"abc"):
        parts = [
            Component(p, i, *f) for p, i, f in zip(jp.ycc(scene(20, 20)), ids, ((2, 2), (1, 1), (1, 1)), strict=True)
        ]
        assert info(native, jp.encode(parts, head=JFIF)) is not None
    assert set(SAMPLINGS) >= {"444", "422", "420", "440"}
