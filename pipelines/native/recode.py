"""Re-codes JPEGs with the native library: the same coefficients, restart markers, optimal Huffman codes."""

from __future__ import annotations

import ctypes
import weakref
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.pipelines.image_types import Pixels
from penstock.pipelines.native.library import NO_MEMORY, OK


class _Memory(ctypes.Structure):
    """Mirror pn_memory of native.h."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Recoder(ctypes.Structure):
    """Mirror pn_recoder of recode.h."""

    _fields_ = (("copy", _Memory), ("scratch", _Memory), ("pixels", _Memory))


class _Recoded(ctypes.Structure):
    """Mirror pn_recoded of recode.h."""

    _fields_ = (("size", ctypes.c_uint64), ("scan_offset", ctypes.c_uint64))


class Recoded(NamedTuple):
    """A copy of a JPEG with restart markers.

    Attributes:
        data: the JPEG file.
        segment_ends: where its segments end, markers included, as offsets from the start of its scan, int64 [segments].
    """

    data: bytes
    segment_ends: npt.NDArray[np.int64]


class NativeRecoder:
    """Re-code JPEGs; belongs to one thread, whose memory it reuses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library, self._memory = library, _Recoder()
        weakref.finalize(self, _release, library, self._memory)

    def recode(self, data: bytes, segment_mcus: int, segments: int) -> Recoded | None:
        """Return a copy with a restart marker after every `segment_mcus` MCUs, `segments` segments in total.

        Returns None for unsupported images, such as those that libjpeg would warn about. Raises MemoryError.
        """
        ends, made = np.empty(segments, np.uint32), _Recoded()
        place, memory, found = ends.ctypes.data, ctypes.byref(self._memory), ctypes.byref(made)
        if not _is_ok(self._library.pn_recode(data, len(data), segment_mcus, place, segments, memory, found)):
            return None
        return Recoded(ctypes.string_at(self._memory.copy.data, made.size), ends.astype(np.int64))

    def same_pixels(self, data: bytes, pixels: Pixels) -> bool:
        """Return whether the library's own decoder returns these pixels for the JPEG `data`. Raises MemoryError."""
        height, width = pixels.shape[:2]
        contiguous, memory = np.ascontiguousarray(pixels), ctypes.byref(self._memory)
        return _is_ok(self._library.pn_same_pixels(data, len(data), width, height, contiguous.ctypes.data, memory))


def _is_ok(result: int) -> bool:
    if result == NO_MEMORY:
        raise MemoryError("the native library could not allocate memory for an image")
    return result == OK


def _release(library: ctypes.CDLL, memory: _Recoder) -> None:
    for part in (memory.copy, memory.scratch, memory.pixels):
        library.pn_release(ctypes.byref(part))
