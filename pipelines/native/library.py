"""Loads the native library if it was built here, and declares its functions."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).resolve().parent / "libpenstock.so"
SWITCH = "PENSTOCK_NATIVE"  # 0 switches the library off
CURE = "apt-get install gcc libc6-dev, then python -m penstock.pipelines.native.build"
_ABI = 11  # PN_ABI of native.h
OK, NO_MEMORY = 0, 2  # pn_result of native.h; any other result leaves an image to the Python path
_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_INT32, _INT64, _UINT32, _UINT64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
_BATCH_CALL = ((_POINTER, _POINTER, _POINTER, _INT32), _INT32)
# Types of the arguments and of the result of each function; the headers describe them.
_FUNCTIONS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "pn_worker_new": ((), _POINTER),
    "pn_worker_free": ((_POINTER,), None),
    "pn_resizing_memory": ((_POINTER,), _POINTER),
    "pn_row_bytes": ((), _SIZE),
    "pn_task_bytes": ((), _SIZE),
    "pn_crops_bytes": ((), _SIZE),
    "pn_load": _BATCH_CALL,
    "pn_plan": _BATCH_CALL,
    "pn_fill": _BATCH_CALL,
    "pn_make": _BATCH_CALL,
    "pn_cut": _BATCH_CALL,
    "pn_resize": ((_POINTER, _SIZE, _INT32, _INT32, _POINTER, _SIZE, *(_INT32,) * 5, _POINTER), _INT32),
    "pn_recode": ((_POINTER, _SIZE, _INT32, _POINTER, _INT64, _POINTER, _POINTER), _INT32),
    "pn_same_pixels": ((_POINTER, _SIZE, _INT32, _INT32, _POINTER, _POINTER), _INT32),
    "pn_release": ((_POINTER,), None),
    "pn_grey": ((_POINTER, _INT64), None),
    "pn_sum_grey": ((_POINTER, _INT32, _INT64, _POINTER), None),
    "pn_count_levels": ((_POINTER, _INT32, _INT64, _POINTER), None),
    "pn_look_up": ((_POINTER, _INT32, _INT64, _POINTER), None),
    "pn_adjust_color": ((_POINTER, _INT32, _INT64, _POINTER), None),
    "pn_adjust_sharpness": ((_POINTER, _POINTER, _INT32, _INT32, _INT32, _POINTER), None),
    "pn_turn_hue": ((_POINTER, _INT32, _INT64, _POINTER, _POINTER, _POINTER), None),
    "pn_blur": ((_POINTER, _INT32, _INT32, _INT32, _POINTER, _INT32, _POINTER), None),
    "pn_move": ((_POINTER, _POINTER, _INT32, _INT32, _INT32, _POINTER, _POINTER), None),
    "pn_move_smoothly": ((_POINTER, _POINTER, _INT32, _INT32, _INT32, _INT32, _POINTER, _POINTER), None),
    "pn_keep": ((_POINTER, _SIZE, _INT32, _INT64, _INT32, _INT64), _INT32),
    "pn_locate_files": ((_POINTER, _INT64, _POINTER, _POINTER, _INT32), _INT32),
    "pn_locate_stored": ((_POINTER, _INT64, _INT32, _INT64, _POINTER, _POINTER, _INT32), _INT32),
    "pn_random_words": ((_UINT64, _UINT32, _UINT32, _POINTER, _INT32, _INT32, _POINTER), None),
}
# They take microseconds, so they keep the interpreter lock: getting it back may take longer.
_SHORT = ("pn_locate_files", "pn_locate_stored", "pn_random_words")


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """Return the native library; None if it was not built, belongs to another version, or is switched off."""
    return None if os.environ.get(SWITCH) == "0" else load(LIBRARY)


def instructions(library: ctypes.CDLL) -> str:
    """Return the instructions that the library uses here: "AVX2", or "generic C"."""
    return "AVX2" if library.pn_has_avx2() else "generic C"


def load(path: Path) -> ctypes.CDLL | None:
    """Load the library at `path`; None if there is none that this version can call."""
    if not path.exists():
        return None
    try:
        library, holding_lock = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        if library.pn_abi() != _ABI:
            return None
        for name, (arguments, result) in _FUNCTIONS.items():
            function = getattr(holding_lock if name in _SHORT else library, name)
            function.argtypes, function.restype = arguments, result
            setattr(library, name, function)
    except (OSError, AttributeError):
        return None
    return library
