"""The native resize: bit-exact with the Python path, in generic C and with AVX2."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator

import native_tests
import numpy as np
import pytest
import torch

from penstock.pipelines.image_types import INTERPOLATIONS, Pixels
from penstock.pipelines.resampling import resize_into
from penstock.pipelines.sample.orientation import upright
from penstock.pipelines.sample.resize import write_sample

PN_OK, PN_UNSUPPORTED, PN_NO_MEMORY = 0, 1, 2
GUARD = 64
Resize = Callable[..., Pixels]


def by_torch(pixels: Pixels, size: tuple[int, int], flip: bool = False, interpolation: str = "bilinear") -> Pixels:
    """Return the Python path's result for `pixels`; size: (width, height)."""
    slot = torch.empty((1, 3, size[1], size[0]), dtype=torch.uint8).to(memory_format=torch.channels_last)
    write_sample(pixels, slot, flip, resize_into, interpolation=interpolation)
    return slot[0].permute(1, 2, 0).numpy()


@pytest.fixture
def resize(library: ctypes.CDLL) -> Iterator[Resize]:
    """Resize in memory that ends where the pixels end; nothing is written outside the result."""
    memory = native_tests.Memory()

    def call(
        pixels: Pixels, size: tuple[int, int], flip: bool = False, orientation: int = 1, interpolation: int = 0
    ) -> Pixels:
        height, width = pixels.shape[:2]
        out = np.full(3 * size[0] * size[1] + 2 * GUARD, 77, np.uint8)
        result = library.pn_resize(
            ctypes.c_void_p(pixels.ctypes.data), ctypes.c_size_t(pixels.strides[0]), width, height,
            ctypes.c_void_p(out.ctypes.data + GUARD), ctypes.c_size_t(3 * size[0]), *size,
            int(flip), orientation, interpolation, ctypes.byref(memory),
        )  # fmt: skip
        assert result == PN_OK
        assert (out[:GUARD] == 77).all()
        assert (out[-GUARD:] == 77).all()
        return out[GUARD:-GUARD].reshape(size[1], size[0], 3)

    yield call
    library.pn_release(ctypes.byref(memory))


def drawn(draw: np.random.Generator, width: int, height: int, stride: int = 0) -> Pixels:
    """Return pixels of one of several kinds, in rows of `stride` bytes, followed by memory that cannot be read."""
    rows = draw.integers(0, 256, (height, max(stride, 3 * width)), dtype=np.uint8)
    kind = draw.integers(4)
    if kind == 1:
        rows = (rows > 127).astype(np.uint8) * np.uint8(255)
    elif kind == 2:  # a chessboard
        rows[:] = 255 * ((np.arange(rows.shape[1]) // 3 + np.arange(height)[:, None]) % 2)
    elif kind == 3:
        rows[:] = draw.choice([0, 1, 127, 128, 254, 255])
    memory = native_tests.at_the_end_of_memory(rows.tobytes()[: (height - 1) * rows.shape[1] + 3 * width])
    return np.lib.stride_tricks.as_strided(memory, (height, width, 3), (rows.shape[1], 3, 1), writeable=False)


def test_random_sizes(resize: Resize) -> None:
    draw = np.random.default_rng(1)
    for number in range(1000):
        limit = (4, 12, 40, 100, 200)[number % 5]
        width, height, *size = (int(side) for side in draw.integers(1, limit + 1, 4))
        if number % 7 == 0:
            size[number % 2] = (width, height)[number % 2]
        pixels = drawn(draw, width, height, 3 * width + int(draw.integers(0, 20)))
        flip, kind = bool(draw.integers(2)), int(draw.integers(len(INTERPOLATIONS)))
        got = resize(pixels, tuple(size), flip, interpolation=kind)
        expected = by_torch(pixels, tuple(size), flip, INTERPOLATIONS[kind])
        assert np.array_equal(got, expected), (width, height, size, flip, kind)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ((1, 1), (224, 224)),
        ((3000, 2), (1, 2)),
        ((2, 3000), (2, 1)),
        ((3000, 1), (7, 300)),
        ((1, 3000), (50, 11)),
        ((3000, 40), (224, 33)),
        ((65536, 2), (3, 1)),
        ((5, 5), (3000, 3)),
        ((224, 224), (224, 224)),
        ((224, 500), (224, 224)),
        ((500, 224), (224, 224)),
        ((449, 447), (224, 224)),
        ((450, 448), (225, 112)),
        ((672, 673), (224, 223)),
    ],
)
def test_extreme_sizes(resize: Resize, source: tuple[int, int], target: tuple[int, int]) -> None:
    draw = np.random.default_rng(2)
    for flip in (False, True):
        for number, name in enumerate(INTERPOLATIONS):
            pixels = drawn(draw, *source)
            got = resize(pixels, target, flip, interpolation=number)
            assert np.array_equal(got, by_torch(pixels, target, flip, name)), name


def test_every_width_to_a_third_of_all_widths(resize: Resize) -> None:
    draw = np.random.default_rng(3)
    for width in range(1, 60):
        pixels = drawn(draw, width, 3, 3 * width + width % 3)
        for out_width in range(1 + width % 3, 60, 3):
            kind = out_width % len(INTERPOLATIONS)
            got = resize(pixels, (out_width, 3), interpolation=kind)
            assert np.array_equal(got, by_torch(pixels, (out_width, 3), interpolation=INTERPOLATIONS[kind]))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(resize: Resize, orientation: int) -> None:
    draw = np.random.default_rng(orientation)
    for width, height in ((1, 1), (31, 17), (7, 40), (64, 64)):
        stored = drawn(draw, width, height, 3 * width + 5)
        turned = np.ascontiguousarray(upright(stored, orientation))
        for size in ((16, 12), turned.shape[1::-1]):
            for flip in (False, True):
                assert np.array_equal(resize(stored, size, flip, orientation), by_torch(turned, size, flip))


@pytest.mark.parametrize(
    ("stride", "sides", "orientation"),
    [
        (30, (0, 5, 4, 4), 1),
        (30, (5, -1, 4, 4), 1),
        (30, (5, 5, 0, 4), 1),
        (30, (5, 5, 4, 1 << 21), 1),
        (14, (5, 5, 4, 4), 1),
        (30, (5, 5, 4, 4), 0),
        (30, (5, 5, 4, 4), 9),
        (30, (5, 5, 4, 4), 1),  # the interpolation below
    ],
)
def test_invalid_sizes_write_nothing(
    native: ctypes.CDLL, stride: int, sides: tuple[int, int, int, int], orientation: int
) -> None:
    memory = native_tests.Memory()
    nowhere = ctypes.c_void_p(0)
    width, height, *size = sides
    source, to = (nowhere, ctypes.c_size_t(stride), width, height), (nowhere, ctypes.c_size_t(0), *size)
    for kind in (-1, len(INTERPOLATIONS)) if (stride, sides, orientation) == (30, (5, 5, 4, 4), 1) else (0,):
        arguments = (*source, *to, 0, orientation, kind, ctypes.byref(memory))
        assert native.pn_resize(*arguments) == PN_UNSUPPORTED
    assert memory.data is None


@pytest.fixture
def two_tebibytes() -> Iterator[None]:
    """Limit the process's address space to 2 TiB, because larger allocations succeed with unlimited overcommit."""
    if "sanitize" in os.environ.get("CFLAGS", ""):
        pytest.skip("AddressSanitizer itself needs 16 TiB of address space")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 40, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("two_tebibytes")
def test_missing_memory_is_reported(native: ctypes.CDLL) -> None:
    memory = native_tests.Memory()
    pixels = np.zeros((1, 1, 3), np.uint8)
    side = 1 << 20  # the turned copy would need 3 TiB
    place = ctypes.c_void_p(pixels.ctypes.data)
    row_bytes = ctypes.c_size_t(3 * side), ctypes.c_size_t(3)
    arguments = (place, row_bytes[0], side, side, place, row_bytes[1], 1, 1, 0, 2, 0, ctypes.byref(memory))
    assert native.pn_resize(*arguments) == PN_NO_MEMORY
    assert (memory.data, memory.size) == (None, 0)
