"""Damaged files: the native library decodes and re-codes only what Python accepts without repairs, to equal pixels."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest
import simplejpeg
from image_fuzz import mutate
from jpeg_samples import stoppable
from native_windows import Info, file_window, info, variant
from odd_images import corpus, jpeg, luma, textured

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Window
from penstock.pipelines.jpeg.header import parse_header
from penstock.pipelines.native.recode import NativeRecoder
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline

SMALL = {
    "420": simplejpeg.encode_jpeg(textured(20, 24), 60, "RGB", "420"),
    "444": simplejpeg.encode_jpeg(np.ascontiguousarray(textured(48, 48)[:9, :17]), 60, "RGB", "444"),
    "grey": jpeg(luma(textured(16, 16))[..., 0], quality=60),
    "restarts": jpeg(textured(33, 24), quality=60, subsampling=2, restart_marker_blocks=1),
    "411": simplejpeg.encode_jpeg(textured(20, 40), 60, "RGB", "411"),
    "progressive": jpeg(textured(20, 24), quality=60, subsampling=2, progressive=True),
    "progressive grey": jpeg(luma(textured(24, 24))[..., 0], quality=90, progressive=True),
    "progressive restarts": jpeg(textured(20, 17), quality=40, progressive=True, restart_marker_blocks=2),
}


class Oracle:
    """Compares windows with the Python path, copies with their sources, and counts both."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self.native, self.decoder = native, ImageDecoder(ImagePipeline(), "simplejpeg", judge=True)
        self.recoder = NativeRecoder(native)
        self.taken = self.left = self.copied = 0

    def check(self, data: bytes, window: Window | None = None, mcus: int = 2) -> None:
        """The file is unsupported, or Python accepts it, repairs nothing, and returns the same pixels."""
        header = info(self.native, data)
        if header is None or header.width * header.height > 100_000:
            assert self.recoder.recode(data, mcus, 9) is None
            self.left += 1
            return
        if window is None:
            window = (0, 0, header.width, header.height)
            self.check_copy(data, header, mcus)
        found = file_window(self.native, data, window)
        if found is None:
            self.left += 1
            return
        self.taken += 1
        try:
            pixels = self.decoder.window(data, self.decoder.probe(data), window)
        except LoaderError as error:
            pytest.fail(f"Python rejects it: {error}")
        assert not self.decoder.repair
        assert np.array_equal(found, pixels)

    def check_copy(self, data: bytes, header: Info, mcus: int) -> None:
        """There is no copy, or libjpeg decodes source and copy to equal pixels without a warning."""
        wide, high = -(-header.width // header.mcu_width), -(-header.height // header.mcu_height)
        made = self.recoder.recode(data, mcus, -(-wide * high // mcus))
        if made is not None:
            self.copied += 1
            source, copy = (simplejpeg.decode_jpeg(each, "RGB", strict=True) for each in (data, made.data))
            assert np.array_equal(source, copy)


@pytest.mark.parametrize("name", SMALL)
def test_truncated_at_every_byte(native: ctypes.CDLL, name: str) -> None:
    data, oracle = SMALL[name], Oracle(native)
    for size in range(len(data)):
        assert file_window(native, data[:size], (0, 0, 4, 4)) is None, size
        oracle.check(data[:size])
        oracle.check(data[:size] + b"\xff\xd9")
        oracle.check(data[:size] + b"\xff\xd9", (0, 0, 4, 2))
    oracle.check(data)
    assert oracle.taken > 0


@pytest.mark.parametrize("name", SMALL)
def test_every_byte_of_the_scan_changed(native: ctypes.CDLL, name: str) -> None:
    data, oracle = SMALL[name], Oracle(native)
    header = info(native, data)
    assert header is not None
    for at in range(header.scan_offset, len(data)):
        for value in (data[at] ^ 1 << at % 8, 0xFF, 0x00, 0xD9):
            broken = data[:at] + bytes([value]) + data[at + 1 :]
            oracle.check(broken)
            oracle.check(broken, (5, 1, 3, 2))
    assert oracle.taken > 100
    assert oracle.left > 100
    assert oracle.copied > 50 or name.startswith("progressive")


@pytest.mark.parametrize("seed", range(2))
def test_mutated_files(native: ctypes.CDLL, seed: int) -> None:
    rng, oracle = random.Random(seed), Oracle(native)
    progressive = [data for name, data in SMALL.items() if name.startswith("progressive")]
    pool = [*SMALL.values(), *progressive * 8, *(data for data in stoppable().values() if len(data) < 6000)]
    for _ in range(2500):
        data = mutate(rng.choice(pool), pool, rng)
        header = info(native, data)
        with variant(native, avx2=seed % 2 == 0):
            oracle.check(data, mcus=rng.randint(1, 4))
            if header is not None:
                x, y = rng.randrange(header.width), rng.randrange(header.height)
                oracle.check(data, (x, y, rng.randint(1, header.width - x), rng.randint(1, header.height - y)))
    assert oracle.taken > 300
    assert oracle.left > 300
    assert oracle.copied > 100


def test_unusual_files(native: ctypes.CDLL) -> None:
    oracle = Oracle(native)
    for odd in corpus():
        oracle.check(odd.data)
    assert oracle.taken > 30
    assert oracle.copied > 30
    assert oracle.left > 100


@pytest.mark.parametrize("interval", [0, 1])
def test_data_below_the_window_is_only_searched_for_markers(native: ctypes.CDLL, interval: int) -> None:
    data = jpeg(textured(200, 64), quality=80, subsampling=2, restart_marker_blocks=interval or 10_000)
    header, oracle = info(native, data), Oracle(native)
    assert header is not None
    top: Window = (3, 2, 40, 20)
    at = len(data) - 200
    while 0xFF in data[at - 4 : at + 4]:
        at -= 1
    for damage, taken in (
        (b"\x12\x34", True),
        (b"\xff\xd9", True),
        (b"\xff\xd3", bool(interval)),
        (b"\xff\xc4", False),
        (b"\xff\xff", False),
        (b"\xff\x01", False),
    ):
        broken = data[:at] + damage + data[at + 2 :]
        assert (file_window(native, broken, top) is not None) == taken or (damage == b"\xff\xd3" and not interval)
        oracle.check(broken, top)
        oracle.check(broken)
    for end in (data[:-2], data[:-1], data[:-2] + b"\xff\xd0\xff\xd9", data[:-2] + b"\0\xff\xd9"):
        oracle.check(end, top)
        oracle.check(end)
        assert file_window(native, end, (0, 0, 64, 200)) is None
    few = data[: header.scan_offset + 10] + b"\xff\xd9"
    assert file_window(native, few, (0, 0, 1, 1)) is None


@pytest.mark.parametrize("side", [65500, 65501, 65504])
def test_sides_above_libjpegs_limit_are_unsupported(native: ctypes.CDLL, side: int) -> None:
    """libjpeg rejects more than 65500 pixels, although the MCUs of such a file extend to 65504."""
    size = side.to_bytes(2, "big")
    for height, width in ((8, 65500), (65500, 8)):
        data = simplejpeg.encode_jpeg(np.zeros((height, width, 3), np.uint8), 50, "RGB", "444")
        header = parse_header(data)
        at = header.height_offset + 2 * (width > height)
        data = data[:at] + size + data[at + 2 :]
        window: Window = (side - 9, 0, 9, 8) if width > height else (0, side - 9, 8, 9)
        assert (info(native, data) is not None) == (file_window(native, data, window) is not None) == (side == 65500)
        if side > 65500:
            decoder = ImageDecoder(ImagePipeline(), "simplejpeg")
            with pytest.raises(LoaderError, match="E-CORRUPT"):
                decoder.window(data, decoder.probe(data), window)
