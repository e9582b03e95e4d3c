"""JPEG headers, and windows that are bit-exact although decoding stops below them."""

from __future__ import annotations

import io
import random

import jpeg_parts as jp
import numpy as np
import pytest
from jpeg_parts import Component
from jpeg_samples import stoppable, unstoppable
from odd_images import exif_segment, jpeg, scene
from PIL import Image

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg.header import (
    JpegHeader,
    check_markers,
    is_header_warning,
    is_warning,
    parse_header,
    rows_to_decode,
    rules_out_stray_markers,
    strip_metadata,
)
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

DECODERS = ("simplejpeg", "turbojpeg", "pillow")
WHOLE = stoppable()["420_83x61"]


def pillow_rgb(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def refusal(data: bytes) -> str | None:
    try:
        parse_header(data)
    except LoaderError as error:
        return error.code
    return None


# ---- headers


@pytest.mark.parametrize("name", ["420_83x61", "420_restart_3_83x61", "grey_64x48"])
def test_a_header_cut_anywhere_is_truncated(name: str) -> None:
    data = stoppable()[name]
    scan = parse_header(data).scan_offset
    assert {refusal(data[:cut]) for cut in range(2, scan)} == {"E-TRUNC"}
    assert refusal(data[:scan]) is None


def with_byte(data: bytes, marker: int, offset: int, value: int) -> bytes:
    start = next(start for found, start, _ in jp.segments(data) if found == marker)
    return data[: start + offset] + bytes([value]) + data[start + offset + 1 :]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (jp.SOI + jp.EOI, "E-CORRUPT"),
        (jp.remove_segments(WHOLE, jp.SOF0), "E-CORRUPT"),
        (jp.remove_segments(WHOLE, jp.SOS), "E-CORRUPT"),
        (jp.SOI + WHOLE, "E-CORRUPT"),
        (jp.insert(WHOLE, b"\xff\xd8"), "E-CORRUPT"),
        (jp.insert(WHOLE, b"\xff\0"), "E-CORRUPT"),
        (jp.insert(WHOLE, b"\0"), "E-CORRUPT"),
        (jp.insert(WHOLE, b"\xff\xe5\0\1"), "E-CORRUPT"),
        (jp.insert(WHOLE, jp.segment(jp.SOF0, b"\x08\0\x10\0\x10\1\1\x11\0")), "E-CORRUPT"),
        (with_byte(WHOLE, jp.SOF0, 9, 5), "E-CORRUPT"),  # five components in the space of three
        (with_byte(WHOLE, jp.SOF0, 11, 0x51), "E-CORRUPT"),  # a sampling factor of five
        (with_byte(WHOLE, jp.SOF0, 11, 0x20), "E-CORRUPT"),  # and of none
        (jp.with_frame(WHOLE, size=(0, 61)), "E-CORRUPT"),
        (jp.with_frame(WHOLE, size=(83, 0)), "E-UNSUPPORTED"),
        (jp.with_frame(WHOLE, precision=12), "E-UNSUPPORTED"),
        (jp.with_frame(WHOLE, marker=0xC3), "E-UNSUPPORTED"),
        (jp.with_frame(WHOLE, marker=0xC5), "E-UNSUPPORTED"),
        (jp.with_frame(WHOLE, marker=0xCF), "E-UNSUPPORTED"),
        (jp.encode([Component(scene(16, 16)[..., i], i + 1) for i in range(2)]), "E-UNSUPPORTED"),
        (jp.SOI + jp.segment(jp.SOF0, b"\x08\0\x10"), "E-TRUNC"),
        (jp.SOI + b"\0", "E-TRUNC"),  # too short for any marker
        (jp.SOI + b"\xff\x01", "E-TRUNC"),
    ],
)
def test_headers_that_are_refused(data: bytes, code: str) -> None:
    assert refusal(data) == code


# ---- windows


def decode(name: str) -> ImageDecoder:
    return ImageDecoder(ImagePipeline(), name)


def windows_of(width: int, height: int, number: int, seed: int) -> list[tuple[int, int, int, int]]:
    """Return random windows, and windows that end at each of three rows."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, width, number), rng.integers(0, height, number)
    w, h = rng.integers(1, width - x + 1), rng.integers(1, height - y + 1)
    random = np.stack([x, y, w, h], 1).tolist()
    return [(x, y, w, h) for x, y, w, h in random] + [
        (0, max(0, row - 3), width, min(row, 3)) for row in range(1 + seed % 3, height, 3)
    ]


@pytest.mark.parametrize("kind", [*stoppable(), *unstoppable()])
def test_windows_are_bit_exact(kind: str) -> None:
    data = {**stoppable(), **unstoppable()}[kind]
    expected = pillow_rgb(data)
    height, width = expected.shape[:2]
    for seed, name in enumerate(DECODERS):
        decoder = decode(name)
        probe = decoder.probe(data)
        assert np.array_equal(decoder.full(data), expected), name
        for window in windows_of(width, height, 8, seed):
            x, y, w, h = window
            pixels = decoder.window(data, probe, window)
            assert (pixels.dtype, pixels.shape) == (np.uint8, (h, w, 3))
            assert np.array_equal(pixels, expected[y : y + h, x : x + w]), (name, window)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["444_83x61", "422_83x61", "420_83x61", "440_83x61", "411_83x61", "grey_83x61"])
def test_rows_below_the_window_are_not_decoded(kind: str, name: str) -> None:
    data = stoppable()[kind]
    header = parse_header(data)
    decoder = decode(name)
    expected = decoder.full(data).copy()
    two_thirds = header.scan_offset + (len(data) - header.scan_offset) * 2 // 3
    damaged = data[:two_thirds] + bytes(len(data) - 2 - two_thirds) + jp.EOI
    probe = decoder.probe(damaged)
    assert np.array_equal(decoder.window(damaged, probe, (0, 0, header.width, 16)), expected[:16])
    assert not np.array_equal(decoder.full(damaged), expected)


@pytest.mark.parametrize("name", [*stoppable(), *unstoppable()])
def test_only_files_of_one_scan_are_stoppable(name: str) -> None:
    header = parse_header({**stoppable(), **unstoppable()}[name])
    assert (header.ordinary, header.stoppable) == (True, name in stoppable())
    assert rows_to_decode(header, 1) == (3 if header.stoppable else header.height)


# ---- metadata


@pytest.mark.parametrize("kind", ["420_83x61", "grey_83x61", "420_restart_3_83x61"])
def test_removing_metadata_does_not_change_a_pixel(kind: str) -> None:
    data = stoppable()[kind]
    extra = (
        exif_segment(6, thumbnail=jpeg(scene(8, 8))),
        jp.segment(jp.APP2, b"ICC_PROFILE\0\1\1" + bytes(3000)),
        jp.segment(0xED, b"Photoshop 3.0\0"),
        jp.segment(jp.COM, b"comment"),
    )
    with_all = jp.insert(data, b"".join(extra))
    stripped = strip_metadata(with_all, parse_header(with_all))
    assert stripped == data
    assert np.array_equal(pillow_rgb(with_all), pillow_rgb(stripped))


# ---- warnings and stray markers

WARNINGS = [  # jerror.h of libjpeg-turbo 3.1, JWRN_*
    "Unknown Adobe color transform code 7",
    "Corrupt JPEG data: bad arithmetic code",
    "Inconsistent progression sequence for component 0 coefficient 3",
    "Corrupt JPEG data: 2 extraneous bytes before marker 0xd9",
    "Corrupt JPEG data: premature end of data segment",
    "Corrupt JPEG data: bad Huffman code",
    "Warning: unknown JFIF revision number 9.01",
    "Premature end of JPEG file",
    "Corrupt JPEG data: found marker 0xd3 instead of RST1",
    "Invalid SOS parameters for sequential JPEG",
    "Application transferred too many scanlines",
    "Corrupt JPEG data: bad ICC marker",
]
ERRORS = [
    "Bogus Huffman table definition",
    "Unsupported marker type 0x3a",
    "Premature end of input file",
    "Application transferred too few scanlines",
    "Invalid component ID 9 in SOS",
    "Invalid progressive parameters Ss=1 Se=0 Ah=0 Al=0",
    "Could not determine subsampling level of JPEG image",
    "",
]


def test_warnings_are_distinguished_from_errors() -> None:
    assert [is_warning(text) for text in WARNINGS] == [True] * len(WARNINGS)
    assert [is_warning(text) for text in ERRORS] == [False] * len(ERRORS)
    assert [is_header_warning(text) for text in WARNINGS] == [i in (0, 6, 11) for i in range(len(WARNINGS))]


def test_which_warnings_rule_out_stray_markers() -> None:
    one_scan, several = parse_header(WHOLE), parse_header(unstoppable()["progressive_420"])
    assert [rules_out_stray_markers(text, one_scan) for text in WARNINGS] == [i == 3 for i in range(len(WARNINGS))]
    assert not any(rules_out_stray_markers(text, several) for text in WARNINGS)
    assert rules_out_stray_markers("", one_scan)
    assert rules_out_stray_markers("", several)
    assert not rules_out_stray_markers("Corrupt JPEG data: 2 extraneous bytes before marker 0xd3", one_scan)


def markers_refused(data: bytes, header: JpegHeader) -> tuple[str, str] | None:
    try:
        check_markers(data, header)
    except LoaderError as error:
        return error.code, error.cause
    return None


def test_long_fill_is_scanned_once() -> None:
    # 40 MB of fill bytes in a pattern that backtracks quadratically would take years.
    data = WHOLE[:-2] + b"\xff" * 40_000_000 + b"\0" + jp.EOI
    assert markers_refused(data, parse_header(data)) is None
    body = WHOLE[:-2] + jp.segment(jp.COM, b"x") + b"\xff" * 1_000_000
    refused = markers_refused(body + b"\0" + jp.EOI, parse_header(body))
    assert refused is not None
    assert refused[0] == "E-CORRUPT"


def stray_at(data: bytes, header: JpegHeader) -> int | None:
    """Return where the first stray bytes begin, found from one 0xFF to the next; None if there are none.

    T.81, B.1.1.2 (markers and fill), B.1.1.5 (stuffed bytes, restarts) and B.2.1 (their order).
    """
    position = at = header.scan_offset
    in_scan = True
    while at + 1 < len(data):
        code, following = data[at], data[at + 1]
        if code == following == 0xFF:
            at += 1
        elif code != 0xFF or following == 0 or 0xD0 <= following <= 0xD7:
            if not in_scan:
                return position
            found = data.find(b"\xff", at + 1)
            at = found if found >= 0 else len(data)
        elif following == 0xD9:
            return None
        elif following < 0xC0 or following == 0xD8 or (following == jp.SOS and header.stoppable):
            return position
        else:
            position = at = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            in_scan = following == jp.SOS
    return position


INSERTS = (
    *(b"\0", b"\xff", b"\xff\xff\xff", b"\xff\0", b"\xff\xd0", b"\xff\xd7", b"\xff\x01", b"\xff\xff\xbf"),
    *(jp.SOI, jp.EOI, b"trailing bytes", b"\xff\xfe\0\0", b"\xff\xfe\xff\xff", b"\xff\xfe\0", b"\xff\xda\0\2"),
    *(bytes((0xFF, marker)) for marker in (0x3A, 0xC0, 0xC4, 0xE5)),
    b"\xff" + jp.segment(0xE5, b"in the middle"),
    *(jp.segment(jp.COM, b"bye \xff\xd9"), jp.segment(jp.DHT, b""), jp.segment(jp.SOS, b"\1\1\0\0\x3f\0")),
)


def damaged(data: bytes, start: int, rng: random.Random) -> bytes:
    """Return the file with changes at up to four places from `start` on, often around its end marker."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        end = max(start, out.rfind(jp.EOI))
        at = rng.choice((rng.randint(start, len(out)), rng.randint(start, len(out)), end, len(out)))
        kind = rng.randrange(8)
        if kind < 4:
            out[at:at] = rng.choice(INSERTS)
        elif kind < 6:
            out[at : at + 1] = b"\xff"
        elif kind == 6:
            out[at:at] = bytes((0xFF, rng.randrange(256)))
        else:
            del out[at : at + rng.choice((1, 2, 3, len(out)))]
    return bytes(out)


@pytest.mark.parametrize(
    "kind",
    [
        *("420_33x17", "grey_33x17", "422_restart_3_33x17", "440_restart_5_handmade"),
        *("progressive_420", "progressive_restart", "scan_a_component"),
    ],
)
def test_markers_are_judged_as_by_a_search_byte_by_byte(kind: str) -> None:
    whole = {**stoppable(), **unstoppable()}[kind]
    header = parse_header(whole)
    rng = random.Random(kind)
    sound = 0
    for number in range(500):
        data = damaged(whole, header.scan_offset, rng)
        position = stray_at(data, header)
        sound += position is None
        cause = f"the JPEG's markers do not lead to its end: stray bytes at {position}"
        assert markers_refused(data, header) == (None if position is None else ("E-CORRUPT", cause)), number
    assert 100 < sound < 400
