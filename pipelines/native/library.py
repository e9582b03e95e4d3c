"""Loads the native library, if it was built here."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "libpenstock.so"
SWITCH = "PENSTOCK_NATIVE"  # 0 leaves the library out
CURE = "apt-get install gcc libc6-dev, then python -m penstock.pipelines.native.build"
_ABI = 5  # PN_ABI of native.h
OK, NO_MEMORY = 0, 2  # pn_result of native.h; what else there is leaves an image to the Python path


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """Return the native library; None where it was not built, is another version's, or is switched off."""
    return None if os.environ.get(SWITCH) == "0" else load(LIBRARY)


def instructions(library: ctypes.CDLL) -> str:
    """Return the instructions that the library uses here: "AVX2", or "generic C"."""
    return "AVX2" if library.pn_has_avx2() else "generic C"


def load(path: Path) -> ctypes.CDLL | None:
    """Load the library at `path`; None where there is none that this version can call."""
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        usable = library.pn_abi() == _ABI
    except (OSError, AttributeError):
        return None
    return library if usable else None
