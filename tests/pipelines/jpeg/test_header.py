"""JPEG headers, and windows that are bit-exact although decoding stops below them."""

from __future__ import annotations

import io
import random
import struct
import warnings

import jpeg_parts as jp
import numpy as np
import pytest
from jpeg_parts import Component
from jpeg_samples import SAMPLINGS, stoppable, unstoppable
from odd_images import JFIF, OddImage, corpus, exif_segment, jpeg, scene
from PIL import Image

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg import header as penstock_jpeg
from penstock.pipelines.jpeg.header import (
    JpegHeader,
    check_markers,
    find_exif,
    has_end_marker,
    is_header_warning,
    is_warning,
    parse_header,
    rows_to_decode,
    rules_out_stray_markers,
    stop_below,
    strip_metadata,
)
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

DECODERS = ("simplejpeg", "turbojpeg", "pillow")
JPEGS = [odd for odd in corpus() if odd.code is None and odd.data.startswith(b"\xff\xd8")]
WHOLE = stoppable()["420_83x61"]
RESTART = stoppable()["420_restart_3_83x61"]


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


@pytest.mark.parametrize("odd", JPEGS, ids=lambda odd: odd.name)
def test_sizes_are_pillows(odd: OddImage) -> None:
    header = parse_header(odd.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # corrupt EXIF
        image = Image.open(io.BytesIO(odd.data))
    with image:
        assert (header.width, header.height) == image.size
        assert header.components == len(image.getbands())
        assert (header.sof in (0xC2, 0xCA)) == bool(image.info.get("progressive", 0))
    at = header.height_offset
    assert odd.data[at : at + 4] == struct.pack(">HH", header.height, header.width)
    assert odd.data[header.segments[-1][1]] == 0xFF
    assert header.segments[-1][0] == jp.SOS
    assert header.scan_offset == header.segments[-1][2]


@pytest.mark.parametrize("name", [*stoppable(), *unstoppable()])
def test_ordinary_files_are_stoppable_if_of_one_scan(name: str) -> None:
    header = parse_header({**stoppable(), **unstoppable()}[name])
    assert header.ordinary
    assert header.stoppable == (name in stoppable())
    assert has_end_marker({**stoppable(), **unstoppable()}[name], header)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_sampling_factors(name: str) -> None:
    assert parse_header(stoppable()[f"{name}_83x61"]).sampling == (SAMPLINGS[name], (1, 1), (1, 1))


@pytest.mark.parametrize(
    "name",
    [
        *("jpeg_cmyk_pillow", "jpeg_ycck", "jpeg_factors_410", "jpeg_factors_thirds", "jpeg_factors_chromas_differ"),
        *("jpeg_factors_all_22", "jpeg_factors_luma_below_chroma"),
    ],
)
def test_unusual_files_are_not_ordinary(name: str) -> None:
    assert not parse_header(next(odd.data for odd in JPEGS if odd.name == name)).ordinary
    assert not parse_header(jp.with_frame(WHOLE, marker=0xC9)).ordinary  # arithmetic coding


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
        (jp.without(WHOLE, jp.SOF0), "E-CORRUPT"),
        (jp.without(WHOLE, jp.SOS), "E-CORRUPT"),
        (jp.SOI + WHOLE, "E-CORRUPT"),
        (jp.inserted(WHOLE, b"\xff\xd8"), "E-CORRUPT"),
        (jp.inserted(WHOLE, b"\xff\0"), "E-CORRUPT"),
        (jp.inserted(WHOLE, b"\0"), "E-CORRUPT"),
        (jp.inserted(WHOLE, b"\xff\xe5\0\1"), "E-CORRUPT"),
        (jp.inserted(WHOLE, jp.segment(jp.SOF0, b"\x08\0\x10\0\x10\1\1\x11\0")), "E-CORRUPT"),
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


@pytest.mark.parametrize("extra", [b"\xff" * 9, b"\xff\x01", b"\xff\xd3", b"\xff\xff\xd7\xff"])
def test_fill_bytes_and_lone_markers_are_stepped_over(extra: bytes) -> None:
    header = parse_header(jp.inserted(WHOLE, extra))
    assert header._replace(height_offset=0, scan_offset=0, segments=()) == parse_header(WHOLE)._replace(
        height_offset=0, scan_offset=0, segments=()
    )


def test_an_end_marker_counts_only_after_the_scan_has_begun() -> None:
    thumbnail = jp.inserted(WHOLE, exif_segment(thumbnail=jpeg(scene(8, 8))))
    header = parse_header(thumbnail)
    assert has_end_marker(thumbnail, header)
    assert not has_end_marker(thumbnail[:-2], header)
    assert has_end_marker(thumbnail + b"trailing", header)


# ---- windows


def decode(name: str) -> ImageDecoder:
    return ImageDecoder(ImagePipeline(), name)


def windows_of(width: int, height: int, number: int, seed: int) -> list[tuple[int, int, int, int]]:
    """Random windows, and those that end at each row."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, width, number), rng.integers(0, height, number)
    w, h = rng.integers(1, width - x + 1), rng.integers(1, height - y + 1)
    random = np.stack([x, y, w, h], 1).tolist()
    return [(x, y, w, h) for x, y, w, h in random] + [
        (0, max(0, row - 3), width, min(row, 3)) for row in range(1, height)
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
        for window in windows_of(width, height, 25, seed):
            x, y, w, h = window
            pixels = decoder.window(data, probe, window)
            assert (pixels.dtype, pixels.shape) == (np.uint8, (h, w, 3))
            assert np.array_equal(pixels, expected[y : y + h, x : x + w]), (name, window)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["444_83x61", "422_83x61", "420_83x61", "440_83x61", "411_83x61", "grey_83x61"])
def test_what_lies_below_is_never_decoded(kind: str, name: str) -> None:
    data = stoppable()[kind]
    header = parse_header(data)
    decoder = decode(name)
    expected = decoder.full(data).copy()
    two_thirds = header.scan_offset + (len(data) - header.scan_offset) * 2 // 3
    damaged = data[:two_thirds] + bytes(len(data) - 2 - two_thirds) + jp.EOI
    probe = decoder.probe(damaged)
    assert np.array_equal(decoder.window(damaged, probe, (0, 0, header.width, 16)), expected[:16])
    assert not np.array_equal(decoder.full(damaged), expected)


def test_fewer_rows_would_not_be_exact() -> None:
    header = parse_header(WHOLE)
    expected = pillow_rgb(WHOLE)
    decoder = decode("simplejpeg")._jpeg
    for spare, exact in ((0, False), (1, True), (2, True)):
        rows = decoder.rgb(stop_below(WHOLE, header, 16 + spare), 16 + spare, header.width)[:16]
        assert np.array_equal(rows, expected[:16]) is exact
    assert [rows_to_decode(header, bottom) for bottom in (1, 16, 59, 61)] == [3, 18, 61, 61]
    assert stop_below(WHOLE, header, 61) is WHOLE  # not as much as a copy


@pytest.mark.parametrize("kind", unstoppable())
def test_files_of_several_scans_are_decoded_whole(kind: str) -> None:
    header = parse_header(unstoppable()[kind])
    assert rows_to_decode(header, 1) == header.height


# ---- metadata


@pytest.mark.parametrize("kind", ["420_83x61", "grey_83x61", "420_restart_3_83x61"])
def test_metadata_can_go_without_changing_a_pixel(kind: str) -> None:
    data = stoppable()[kind]
    extra = (
        exif_segment(6, thumbnail=jpeg(scene(8, 8))),
        jp.segment(jp.APP2, b"ICC_PROFILE\0\1\1" + bytes(3000)),
        jp.segment(0xED, b"Photoshop 3.0\0"),
        jp.segment(jp.COM, b"comment"),
    )
    with_all = jp.inserted(data, b"".join(extra))
    stripped = strip_metadata(with_all, parse_header(with_all))
    assert stripped == data
    assert np.array_equal(pillow_rgb(with_all), pillow_rgb(stripped))


def test_colour_markers_stay() -> None:
    adobe = jp.segment(jp.APP14, b"Adobe\0\x64\0\0\0\0\0")
    planes = [Component(scene(16, 16)[..., i], i + 1) for i in range(3)]
    rgb = jp.encode(planes, head=adobe)
    assert strip_metadata(rgb, parse_header(rgb)) == rgb
    ycc = jp.encode(planes, head=JFIF)
    assert strip_metadata(ycc, parse_header(ycc)) == ycc
    assert not np.array_equal(pillow_rgb(rgb), pillow_rgb(ycc))


def test_the_exif_block_is_found() -> None:
    block = exif_segment(6)
    data = jp.inserted(WHOLE, jp.segment(jp.APP1, b"http://ns.adobe.com/xap/1.0/\0<x/>") + block)
    assert find_exif(data, parse_header(data)) == block[4:]
    assert find_exif(WHOLE, parse_header(WHOLE)) is None


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


def test_only_no_warning_or_the_one_about_the_end_proves_a_file_sound() -> None:
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


def test_long_fill_is_looked_at_once() -> None:
    # 40 MB of fill bytes in a pattern that backtracks quadratically would take years.
    data = WHOLE[:-2] + b"\xff" * 40_000_000 + b"\0" + jp.EOI
    assert markers_refused(data, parse_header(data)) is None
    body = WHOLE[:-2] + jp.segment(jp.COM, b"x") + b"\xff" * 1_000_000
    refused = markers_refused(body + b"\0" + jp.EOI, parse_header(body))
    assert refused is not None
    assert refused[0] == "E-CORRUPT"


def stray_at(data: bytes, header: JpegHeader) -> int | None:
    """A version of check_markers byte by byte: where the first stray bytes begin; None if there are none.

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
            at += 1
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
    """The file changed at up to four places from `start` on; often around its end marker."""
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
def test_markers_are_judged_as_byte_by_byte(kind: str) -> None:
    whole = {**stoppable(), **unstoppable()}[kind]
    header = parse_header(whole)
    rng = random.Random(kind)
    sound = 0
    for number in range(1500):
        data = damaged(whole, header.scan_offset, rng)
        position = stray_at(data, header)
        sound += position is None
        cause = f"the JPEG's markers do not lead to its end: stray bytes at {position}"
        assert markers_refused(data, header) == (None if position is None else ("E-CORRUPT", cause)), number
    assert 300 < sound < 1200


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("kind", ["420_83x61", "420_restart_3_83x61"])
def test_a_stray_marker_is_refused_whatever_the_window(kind: str, name: str) -> None:
    data = stoppable()[kind]
    decoder = decode(name)
    for share in (0.1, 0.5, 0.9):
        for marker in (b"\xff\x3a", b"\xff\xe5", b"\xff\xc4"):
            at = int(parse_header(data).scan_offset * (1 - share) + len(data) * share)
            while 0xFF in data[at - 1 : at + 1]:
                at += 1
            damaged = data[:at] + marker + data[at:]
            probe = decoder.probe(damaged)
            for rows in (1, 8, 30, probe.height):
                with pytest.raises(LoaderError) as caught:
                    decoder.window(damaged, probe, (0, 0, probe.width, rows))
                assert caught.value.code == "E-CORRUPT"


def test_a_sound_file_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    # The search costs some per cent of a decode: only what a decoder warned of is worth it.
    def never(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(penstock_jpeg, "check_markers", never)
    for name in ("simplejpeg", "turbojpeg"):
        decoder = decode(name)
        probe = decoder.probe(WHOLE)
        assert decoder.window(WHOLE, probe, (0, 0, 9, 9)).shape == (9, 9, 3)
        assert decoder.full(WHOLE).shape == (61, 83, 3)
        with pytest.raises(AssertionError, match="searched"):
            decoder.window(RESTART, decoder.probe(RESTART), (0, 0, 9, 9))
