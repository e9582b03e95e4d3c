"""Calls of the native library's window decoder: they return pixels, or None if it leaves the image to Python."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from odd_images import jpeg, luma, textured

from penstock.pipelines.image_types import Window
from penstock.pipelines.native.rows import ENCODED, NO_NAMES, ROW, NativeStage

OK, UNSUPPORTED = 0, 1
_BORDER = 64  # bytes after the pixels that must not change
_INFO = ctypes.c_int64 * 10


class Info(NamedTuple):
    """Result of pn_jpeg_info."""

    width: int
    height: int
    components: int
    mcu_width: int
    mcu_height: int
    restart_interval: int
    orientation: int
    exif_unsupported: int
    height_offset: int
    scan_offset: int


class Scan(ctypes.Structure):
    """pn_scan of window.h."""

    _fields_ = (
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("first_row", ctypes.c_int32),
        ("segment_mcus", ctypes.c_int32),
        ("at_end", ctypes.c_int),
        ("whole_file", ctypes.c_int),
    )


def info(native: ctypes.CDLL, data: bytes) -> Info | None:
    """Return the header of a JPEG, or None if it is unsupported."""
    found = _INFO()
    return Info(*found) if _taken(native.pn_jpeg_info(data, ctypes.c_size_t(len(data)), found)) else None


@cache
def scene(kind: str, height: int, width: int, quality: int = 85) -> bytes:
    """Return a baseline file, grey or with this sampling."""
    pixels = np.ascontiguousarray(textured(max(height, 48), max(width, 48))[:height, :width])
    if kind == "grey":
        return jpeg(luma(pixels)[..., 0], quality=quality)
    return simplejpeg.encode_jpeg(pixels, quality, "RGB", kind)


@cache
def stage_of(native: ctypes.CDLL) -> NativeStage:
    return NativeStage(native, 2**62, apply_exif=False)


def file_window(native: ctypes.CDLL, data: bytes, window: Window) -> npt.NDArray[np.uint8] | None:
    """Return a window of a file, not resized."""
    (memory, pixels), stage, rows = _memory(window), stage_of(native), np.zeros(1, ROW)
    held = np.frombuffer(data or b"\0", np.uint8)
    rows["kind"], rows["offset"], rows["size"] = ENCODED, held.ctypes.data, len(data)
    assert stage.load(rows, NO_NAMES)
    rows["window"] = window
    rows["out_width"], rows["out_height"], rows["place"] = *window[2:], (0, 0, *window[2:])
    assert stage.fill(rows, pixels if pixels.size else None)
    if not _taken(int(rows["result"][0])):
        return None
    assert (memory[-_BORDER:] == 0xA5).all(), "pixels were written after the window"
    return pixels


def strips_window(native: ctypes.CDLL, header: bytes, scan: Scan, window: Window) -> npt.NDArray[np.uint8] | None:
    """Return a window of restart strips."""
    memory, pixels = _memory(window)
    place = (ctypes.c_int32 * 4)(*window)
    size = ctypes.c_size_t(len(header))
    if not _taken(native.pn_decode_strips_window(header, size, ctypes.byref(scan), place, _pointer(pixels))):
        return None
    assert (memory[-_BORDER:] == 0xA5).all(), "pixels were written after the window"
    return pixels


def draw_windows(height: int, width: int, number: int, rng: random.Random) -> list[Window]:
    """Return the whole image, each corner, and `number` windows of any size."""
    small = min(width, 5), min(height, 3)
    found = [(0, 0, width, height)]
    found += [(x, y, *small) for x in (0, width - small[0]) for y in (0, height - small[1])]
    for _ in range(number):
        w, h = rng.randint(1, width), rng.randint(1, height)
        found.append((rng.randint(0, width - w), rng.randint(0, height - h), w, h))
    return found


def check_windows(native: ctypes.CDLL, data: bytes, number: int, seed: int) -> None:
    """Check that all windows equal libjpeg's pixels."""
    pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
    for window in draw_windows(*pixels.shape[:2], number, random.Random(seed)):
        x, y, w, h = window
        found = file_window(native, data, window)
        assert found is not None, window
        assert np.array_equal(found, pixels[y : y + h, x : x + w]), window


@contextmanager
def variant(native: ctypes.CDLL, avx2: bool) -> Iterator[None]:
    """Choose between the code for AVX2 (where the processor has it) and plain C."""
    native.pn_use_avx2(int(avx2))
    try:
        yield
    finally:
        native.pn_use_avx2(1)


def _memory(window: Window) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    _, _, width, height = window
    memory = np.full(3 * max(width, 0) * max(height, 0) + _BORDER, 0xA5, np.uint8)
    return memory, memory[:-_BORDER].reshape(max(height, 0), max(width, 0), 3)


def _pointer(pixels: npt.NDArray[np.uint8]) -> ctypes.c_void_p:
    return ctypes.c_void_p(pixels.ctypes.data)


def _taken(result: int) -> bool:
    assert result in (OK, UNSUPPORTED), f"result {result}"
    return result == OK
