"""Files crafted to keep a decoder busy or to fill its memory: every decoder rejects them early."""

from __future__ import annotations

import struct
import zlib

import jpeg_parts as jp
import numpy as np
import pytest
from jpeg_samples import stoppable, unstoppable
from odd_images import OddImage, corpus, encoded, jpeg, scene
from PIL import Image

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.jpeg.header import check_scans, parse_header
from penstock.pipelines.sample import decode_pillow, pixel_buffer
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.formats import check_end, read_format
from penstock.pipelines.spec import ImagePipeline

DECODERS = ("simplejpeg", "turbojpeg", "pillow")
WHOLE, PROGRESSIVE = stoppable()["420_83x61"], unstoppable()["progressive_420"]
COMMENT = jp.segment(jp.COM, b"")
GIF = encoded(Image.fromarray(scene(6, 8)).quantize(16), "GIF")
GIF_LEAD = GIF.index(b"\x2c\0\0\0\0")  # where its frame begins
PNG = encoded(Image.fromarray(scene(6, 8)), "PNG")


def refusal(data: bytes, decoder: str = "simplejpeg") -> str | None:
    try:
        ImageDecoder(ImagePipeline(), decoder).full(data)
    except LoaderError as error:
        return error.code
    return None


class Counted(bytes):
    """Counts the bytes that are read one by one."""

    looks = 0

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        self.looks += isinstance(key, int)
        return super().__getitem__(key)


# ---- scans


def with_scans(data: bytes, number: int) -> bytes:
    """Return the progressive file with empty scans (like its last) added before its end: `number` in total."""
    start = data.rindex(b"\xff\xda")
    header = data[start : start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")]
    return data[:-2] + header * (number - data.count(b"\xff\xda")) + jp.EOI


@pytest.mark.parametrize("decoder", DECODERS)
def test_number_of_scans_is_limited(decoder: str) -> None:
    assert PROGRESSIVE.count(b"\xff\xda") == 10
    assert refusal(with_scans(PROGRESSIVE, 100), decoder) is None
    assert refusal(with_scans(PROGRESSIVE, 501), decoder) == "E-BOMB"
    assert refusal(with_scans(PROGRESSIVE, 20_000), decoder) == "E-BOMB"


@pytest.mark.parametrize(("max_pixels", "allowed"), [(83 * 61, 32), (83 * 61 * 2, 64), (100_000_000, 500)])
def test_a_larger_image_may_have_fewer_scans(max_pixels: int, allowed: int) -> None:
    most, header = with_scans(PROGRESSIVE, allowed), parse_header(PROGRESSIVE)
    check_scans(most, header, max_pixels)
    with pytest.raises(LoaderError, match=f"more than {allowed} scans of 83x61 pixels") as caught:
        check_scans(with_scans(PROGRESSIVE, allowed + 1), header, max_pixels)
    assert caught.value.code == "E-BOMB"
    hidden = most[:-2] + jp.segment(jp.COM, b"\xff\xda" * 600) + jp.EOI + PROGRESSIVE * 60
    check_scans(hidden, header, max_pixels)  # neither in a segment nor after the end
    junk = most[:-2] + jp.segment(jp.COM, b"") + b"\0" + with_scans(PROGRESSIVE, 900)[-9000:]
    with pytest.raises(LoaderError, match="stray bytes"):
        check_scans(junk, header, max_pixels)


# ---- markers and blocks


def test_fill_bytes_are_skipped_at_once() -> None:
    data = Counted(jp.SOI + b"\xff" * 100_000 + WHOLE[2:])
    assert parse_header(data).width == 83
    assert data.looks < 1000
    for cut in (jp.SOI + b"\xff" * 100_000, jp.SOI + b"\xff" * 100_000 + b"\xe5"):
        with pytest.raises(LoaderError) as caught:
            parse_header(cut)
        assert caught.value.code == "E-TRUNC"


@pytest.mark.parametrize("junk", [COMMENT, b"\xff\x01", b"\xff\xd3"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_markers_by_the_ten_thousand_are_junk(junk: bytes, decoder: str) -> None:
    assert refusal(jp.insert(WHOLE, junk * 1000), decoder) is None
    assert refusal(jp.insert(WHOLE, junk * 10_000), decoder) == "E-CORRUPT"


def test_junk_between_the_blocks_of_a_gif_is_skipped_at_once() -> None:
    data = Counted(GIF[:-1] + bytes(100_000) + b";")
    check_end(data, read_format(data).name)
    assert data.looks < 1000
    with pytest.raises(LoaderError) as caught:
        check_end(Counted(GIF[:-1] + bytes(100_000)), "GIF")
    assert caught.value.code == "E-TRUNC"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (GIF[:GIF_LEAD] + bytes(1000) + GIF[GIF_LEAD:], None),
        (GIF[:GIF_LEAD] + bytes(1 << 20) + GIF[GIF_LEAD:], "E-CORRUPT"),  # which Pillow reads one by one
        (GIF[:-1] + b"!\xfe" + b"\1a" * 100_000 + b"\0;", None),
        (GIF[:-1] + b"!\xfe" + b"\1a" * 110_000 + b"\0;", "E-CORRUPT"),
        (GIF[:-1] + b"!\xfe\0" * 110_000 + b";", "E-CORRUPT"),
    ],
)
def test_blocks_by_the_hundred_thousand_are_junk(data: bytes, code: str | None) -> None:
    assert refusal(data) == code


def test_chunks_by_the_ten_thousand_are_junk() -> None:
    chunk = struct.pack(">I", 0) + b"teXt" + struct.pack(">I", zlib.crc32(b"teXt"))
    assert refusal(PNG[:33] + chunk * 5000 + PNG[33:]) is None
    assert refusal(PNG[:33] + chunk * 11_000 + PNG[33:]) == "E-CORRUPT"


# ---- memory


def declared(width: int, height: int, depth: int, colour: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return PNG[:8] + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + PNG[-12:]


@pytest.mark.parametrize(
    ("depth", "colour", "megapixels"),
    [(8, 6, 100), (16, 6, 50), (16, 2, 66), (16, 4, 100), (16, 0, 100), (8, 3, 100), (1, 0, 100)],
)
def test_sixteen_bits_per_sample_count_twice(depth: int, colour: int, megapixels: int) -> None:
    decoder = ImageDecoder(ImagePipeline())
    assert decoder.probe(declared(10_000, megapixels * 100, depth, colour)).width == 10_000
    with pytest.raises(LoaderError, match="max_pixels is 100000000") as caught:
        decoder.probe(declared(10_000, megapixels * 100 + 100, depth, colour))
    assert caught.value.code == "E-BOMB"


@pytest.mark.parametrize("odd", [odd for odd in corpus() if odd.code is None], ids=lambda odd: odd.name)
def test_large_images_are_converted_in_bands(odd: OddImage, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = ImageDecoder(ImagePipeline(), "pillow")
    whole = decoder.full(odd.data).copy()
    height, width = whole.shape[:2]
    converted: list[int] = []
    convert = decode_pillow._convert_band

    def noted(image: Image.Image) -> np.ndarray:
        converted.append(image.size[1])
        return convert(image)

    monkeypatch.setattr(decode_pillow, "_convert_band", noted)
    monkeypatch.setattr(decode_pillow, "_BAND_PIXELS", 5 * width)
    assert np.array_equal(decoder.full(odd.data), whole)
    assert sum(converted) == height
    assert max(converted) <= 5


@pytest.mark.parametrize("name", ["simplejpeg", "turbojpeg"])
def test_no_memory_of_a_large_image_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = ImageDecoder(ImagePipeline(), name)
    large, small = jpeg(scene(64, 64)), jpeg(scene(16, 16))
    expected = decoder.full(large).copy()
    memory = decoder._jpeg._memory._kept  # type: ignore[attr-defined]
    assert memory.nbytes >= expected.nbytes
    monkeypatch.setattr(pixel_buffer, "_KEPT_BYTES", expected.nbytes - 1)
    decoder = ImageDecoder(ImagePipeline(), name)
    assert np.array_equal(decoder.full(large), expected)
    decoder.full(small)
    assert 0 < decoder._jpeg._memory._kept.nbytes < expected.nbytes  # type: ignore[attr-defined]
