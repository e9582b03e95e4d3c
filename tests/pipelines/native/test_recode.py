"""Lossless re-coding by the native library: the coefficients of the source, and optimal codes."""

from __future__ import annotations

import ctypes
import gc
import random
from collections.abc import Iterator
from functools import cache

import jpeg_parts as jp
import numpy as np
import pytest
import simplejpeg
from jpeg_coefficients import read_jpeg
from jpeg_samples import PILLOW_SAMPLINGS, stoppable, unstoppable
from native_tests import at_the_end_of_memory
from native_windows import variant
from odd_images import exif_segment, jpeg, luma, textured
from progressive_jpegs import split_scans
from stored_jpegs import stored_jpegs

from penstock.pipelines.jpeg.header import SOI, parse_header
from penstock.pipelines.jpeg.strips import mcu_size, restart_interval, segment_ends
from penstock.pipelines.native import recode as native_recode
from penstock.pipelines.native.recode import NativeRecoder, Recoded

QUALITIES = (1, 5, 10, 25, 40, 55, 70, 80, 88, 93, 97, 100)


@cache
def kinds() -> dict[str, bytes]:
    """Small files of all kinds that the library re-codes."""
    files = dict(stoppable())
    files["orientation"] = files["420_83x61"][:2] + exif_segment(6) + files["420_83x61"][2:]
    files["one_pixel"] = simplejpeg.encode_jpeg(np.full((1, 1, 3), 9, np.uint8), 90, "RGB", "420")
    files["one_row"] = jpeg(np.ascontiguousarray(textured(48, 300)[:1]), quality=90, subsampling=1)
    return files


def segments_of(data: bytes, mcus: int) -> int:
    """Number of segments of a copy with a restart marker after every `mcus` MCUs."""
    header = parse_header(data)
    width, height = mcu_size(header)
    return -(-(-(-header.width // width) * -(-header.height // height)) // mcus)


def recoded(native: ctypes.CDLL, data: bytes, mcus: int = 2) -> Recoded | None:
    """The copy; None if the library does not support the file."""
    return NativeRecoder(native).recode(data, mcus, segments_of(data, mcus))


def check_copy(native: ctypes.CDLL, data: bytes, mcus: int, baseline: bytes | None = None) -> None:
    """Check a copy; `baseline` has the coefficients of a progressive `data`."""
    made = recoded(native, data, mcus)
    assert made is not None
    copy = made.data
    found = read_jpeg(copy)
    assert found.image == read_jpeg(baseline or data).image
    for lengths, used in found.tables:
        counts = [used.get(symbol, 0) for symbol in range(256)]
        assert sum(length * used[symbol] for symbol, length in lengths.items()) == least_bits(counts)
    markers = {marker for marker, _, _ in jp.segments(copy)}
    assert markers - {jp.SOF0, jp.SOF1} == {jp.APP0, jp.DQT, jp.DHT, jp.DRI, jp.SOS}
    header = parse_header(copy)
    scan = np.frombuffer(copy, np.uint8)[header.scan_offset : -2]
    assert made.segment_ends.tolist() == [*segment_ends(scan).tolist(), len(scan)]
    assert copy[made.segment_ends[-1] + header.scan_offset :] == b"\xff\xd9"
    restarts = bytes(scan[made.segment_ends[:-1] - 1])
    assert restarts == bytes(0xD0 + number % 8 for number in range(len(restarts)))
    assert restart_interval(copy, header) == mcus
    assert copy[:12] == SOI + b"\xff\xe0\0\x10JFIF\0\x01"
    pixels = simplejpeg.decode_jpeg(data, strict=True)
    assert np.array_equal(simplejpeg.decode_jpeg(copy, strict=True), pixels)
    assert NativeRecoder(native).same_pixels(copy, pixels)


@pytest.mark.parametrize("avx2", [True, False])
def test_every_kind(native: ctypes.CDLL, avx2: bool) -> None:
    with variant(native, avx2):
        for data in kinds().values():
            header = parse_header(data)
            row = -(-header.width // mcu_size(header)[0])
            for mcus in {1, row} if avx2 else {3}:
                check_copy(native, data, mcus)


@pytest.mark.parametrize("sampling", ["444", "422", "420", "440", "grey"])
def test_qualities(native: ctypes.CDLL, sampling: str) -> None:
    pixels = textured(72, 120)
    for quality in QUALITIES:
        grey = jpeg(luma(pixels)[..., 0], quality=quality)
        data = grey if sampling == "grey" else simplejpeg.encode_jpeg(pixels, quality, "RGB", sampling)
        check_copy(native, data, 2)


def contents() -> dict[str, np.ndarray]:
    """Images with no coefficients, many, the largest, and large differences."""
    draw = np.random.default_rng(5)
    x, y = np.meshgrid(np.arange(88), np.arange(72))
    blocks = ((x // 8 + y // 8) % 2 * 255).astype(np.uint8)
    cosines = [np.cos((2 * (a % 8) + 1) * k * np.pi / 16) for a, k in ((x, 7), (y, 5))]
    return {
        "flat": np.full((72, 88), 77, np.uint8),
        "noise": draw.integers(0, 256, (72, 88), np.uint8),
        "extremes": draw.integers(0, 2, (72, 88), np.uint8) * 255,
        "blocks": blocks,
        "cosine": ((cosines[0] * cosines[1] > 0) * 255).astype(np.uint8),
        "dots": (draw.random((72, 88)) < 0.01).astype(np.uint8) * 255,
    }


@pytest.mark.parametrize("name", contents())
def test_contents(native: ctypes.CDLL, name: str) -> None:
    grey = contents()[name]
    colours = np.ascontiguousarray(np.stack([grey, grey[::-1], 255 - grey[:, ::-1]], axis=2))
    for quality in (100, 30):
        check_copy(native, jpeg(grey, quality=quality, optimize=True), 1)
        for sampling in PILLOW_SAMPLINGS.values():
            check_copy(native, jpeg(colours, quality=quality, subsampling=sampling), 3)


def test_quantisers_of_16_bits_stay(native: ctypes.CDLL) -> None:
    data = kinds()["444_83x61"]
    at = data.index(b"\xff\xdb")
    table = data[at + 5 : at + 69]
    wide = b"\xff\xdb\0\x83\x10" + b"".join(bytes([int(k == 63), value]) for k, value in enumerate(table))
    assert data[at + 2 : at + 5] == b"\0\x43\0"
    made = recoded(native, data[:at] + wide + data[at + 69 :])
    assert made is not None
    assert parse_header(made.data).sof == 0xC1
    check_copy(native, data[:at] + wide + data[at + 69 :], 2)


def test_same_bytes_whatever_the_instructions_and_what_was_made_before(native: ctypes.CDLL) -> None:
    files = [kinds()[name] for name in ("420_83x61", "grey_83x61", "444_40x130")]
    expected = [recoded(native, data) for data in files]
    again = NativeRecoder(native)
    for avx2 in (False, True):
        with variant(native, avx2):
            for data, made in zip(files, expected, strict=True):
                found = again.recode(data, 2, segments_of(data, 2))
                assert made is not None
                assert found is not None
                assert found.data == made.data
                assert found.segment_ends.tolist() == made.segment_ends.tolist()


def test_unsupported_files(native: ctypes.CDLL) -> None:
    plain = kinds()["420_83x61"]
    recoder, right = NativeRecoder(native), segments_of(plain, 2)
    assert recoder.recode(plain, 2, right) is not None
    for mcus, segments in ((2, right - 1), (2, right + 1), (0, right), (-1, right), (65536, 1), (2, 0), (2, -1)):
        assert recoder.recode(plain, mcus, max(segments, 0)) is None
    for name, data in unstoppable().items():
        assert name.startswith("progressive") or recoded(native, data) is None, name
    for data in (
        plain[:-1],
        plain[:-2],
        plain[:-2] + b"\xff\xd0\xff\xd9",
        plain[:-2] + b"\0\xff\xd9",
        plain[:700],
        b"",
    ):
        assert recoder.recode(data, 2, right) is None


def progressive() -> Iterator[tuple[bytes, bytes]]:
    """Files of every sampling and script, of odd sizes and flat (long runs of empty blocks), each next to its baseline.

    Both have the same coefficients.
    """
    images = [(np.full((300, 400, 3), 77, np.uint8), {"quality": 90})]
    for height, width in ((1, 1), (1, 70), (70, 1), (17, 33), (97, 131)):
        pixels = np.ascontiguousarray(textured(97, 131)[:height, :width])
        images.append((luma(pixels)[..., 0], {"quality": 97}))
        for number, subsampling in enumerate(PILLOW_SAMPLINGS.values()):
            restarts = {"restart_marker_blocks": 3} if number == 1 else {}
            images.append((pixels, {"quality": 40 + 20 * number, "subsampling": subsampling, **restarts}))
    for pixels, options in images:
        yield jpeg(pixels, progressive=True, **options), jpeg(pixels, **options)
    for name, data in stored_jpegs().items():
        if not name.startswith(("baseline", "arithmetic", "33 scans")):
            yield data, stored_jpegs()[f"baseline/{name.split('/')[1]}"]


@pytest.mark.parametrize("avx2", [True, False])
def test_progressive_files(native: ctypes.CDLL, avx2: bool) -> None:
    with variant(native, avx2):
        for data, baseline in progressive():
            for mcus in (1, 2, 5):
                check_copy(native, data, mcus, baseline)


def test_no_part_of_a_progressive_file_is_recoded(native: ctypes.CDLL) -> None:
    """Files cut short, without one of their scans, or damaged so that libjpeg would warn."""
    data, draw, made = jpeg(textured(97, 131), quality=85, progressive=True), random.Random(3), 0
    for size in range(parse_header(data).scan_offset, len(data) - 1, 97):
        assert recoded(native, data[:size]) is None
        assert recoded(native, data[:size] + b"\xff\xd9") is None
    parts = split_scans(data)
    numbers = range(len(parts.scans))
    assert recoded(native, parts.joined(*numbers)) is not None
    for left_out in numbers:
        assert recoded(native, parts.joined(*(number for number in numbers if number != left_out))) is None
        assert recoded(native, parts.joined(*numbers, left_out)) is None
    for _ in range(1500):
        damaged = bytearray(data)
        damaged[draw.randrange(parse_header(data).scan_offset, len(data))] = draw.randrange(256)
        copied = recoded(native, bytes(damaged))
        if copied is not None:
            made += 1
            expected = simplejpeg.decode_jpeg(bytes(damaged), strict=True)  # raises where libjpeg warns
            assert np.array_equal(simplejpeg.decode_jpeg(copied.data, strict=True), expected)
    assert 20 < made < 1400


def test_different_pixels_are_noticed(native: ctypes.CDLL) -> None:
    data, recoder = kinds()["420_83x61"], NativeRecoder(native)
    pixels = simplejpeg.decode_jpeg(data)
    assert recoder.same_pixels(data, pixels)
    assert not recoder.same_pixels(data, np.ascontiguousarray(pixels[:-1]))
    assert not recoder.same_pixels(data[:-2], pixels)
    for at in (0, pixels.size - 1, pixels.size // 2):
        pixels.reshape(-1)[at] ^= 1
        assert not recoder.same_pixels(data, pixels)
        pixels.reshape(-1)[at] ^= 1


def test_nothing_after_the_data_is_read(native: ctypes.CDLL) -> None:
    made, ends = native_recode._Recoded(), np.empty(1000, np.uint32)
    recoder = NativeRecoder(native)

    def run(data: bytes, segments: int) -> int:
        memory = at_the_end_of_memory(data)
        place, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(data))
        to, number = ctypes.c_void_p(ends.ctypes.data), ctypes.c_int64(segments)
        return native.pn_recode(place, size, 2, to, number, ctypes.byref(recoder._memory), ctypes.byref(made))

    for name in ("420_83x61", "grey_33x17", "444_restart_3_33x17"):
        data = kinds()[name]
        assert run(data, segments_of(data, 2)) == 0
        for size in (*range(2, len(data), 61), *range(len(data) - 12, len(data))):
            assert run(data[:size], segments_of(data, 2)) == 1


def test_memory_is_freed(native: ctypes.CDLL) -> None:
    recoder = NativeRecoder(native)
    data = kinds()["420_83x61"]
    memory = recoder._memory
    assert recoder.recode(data, 2, segments_of(data, 2)) is not None
    assert recoder.same_pixels(data, simplejpeg.decode_jpeg(data))
    assert memory.copy.data
    assert memory.scratch.data
    assert memory.pixels.data
    del recoder
    gc.collect()
    assert (memory.copy.data, memory.scratch.data, memory.pixels.data) == (None, None, None)


def test_missing_memory_raises(native: ctypes.CDLL) -> None:
    class Without:
        pn_release = native.pn_release

        def pn_recode(self, *arguments: object) -> int:
            return 2

    with pytest.raises(MemoryError):
        NativeRecoder(Without()).recode(kinds()["420_83x61"], 2, 1)  # type: ignore[arg-type]


# ---- codes


class Code(ctypes.Structure):
    """pn_code of jpeg_header.h."""

    _fields_ = (("defined", ctypes.c_int), ("counts", ctypes.c_uint8 * 16), ("symbols", ctypes.c_uint8 * 256))


def lengths_of(native: ctypes.CDLL, counts: list[int]) -> dict[int, int]:
    """Symbol -> length of its code."""
    code = Code()
    native.pn_optimal_code((ctypes.c_uint32 * 256)(*counts), ctypes.byref(code))
    lengths = [length + 1 for length in range(16) for _ in range(code.counts[length])]
    found = dict(zip(list(code.symbols), lengths))  # noqa: B905
    assert sorted(found) == [symbol for symbol, count in enumerate(counts) if count]
    # The code of all ones is left: with it the lengths would be just those of a full tree.
    assert sum(2.0**-length for length in lengths) + 2.0 ** -lengths[-1] == 1
    return found


def least_bits(counts: list[int]) -> int:
    """Bits that the best code of at most 16 bits takes, by dynamic programming over packages of coins."""
    weights = sorted([0, *(count for count in counts if count)])
    packages: list[int] = []
    for _ in range(16):
        merged = sorted([*weights, *packages])
        packages = [sum(merged[i : i + 2]) for i in range(0, len(merged) - 1, 2)]
    return sum(packages[: len(weights) - 1])


def check_optimal(native: ctypes.CDLL, counts: list[int]) -> int:
    """Check a code, and return the length of its longest word."""
    lengths = lengths_of(native, counts)
    assert sum(counts[symbol] * length for symbol, length in lengths.items()) == least_bits(counts)
    return max(lengths.values())


def test_codes_are_optimal(native: ctypes.CDLL) -> None:
    draw = random.Random(1)
    for number in range(300):
        used = draw.sample(range(256), draw.randint(1, 162))
        counts = [0] * 256
        for symbol in used:
            counts[symbol] = min(int(draw.expovariate(1) ** (number % 12) * 50) + 1, 2**32 - 1)
        check_optimal(native, counts)


@pytest.mark.parametrize("count", [1, 2, 16, 17, 18, 30, 40])
def test_codes_are_16_bits_long_at_most(native: ctypes.CDLL, count: int) -> None:
    """Huffman's own code of Fibonacci's numbers is as long as there are symbols."""
    counts = [1, 1]
    while len(counts) < count:
        counts.append(sum(counts[-2:]))
    assert check_optimal(native, counts[:count] + [0] * (256 - count)) == min(count, 16)
