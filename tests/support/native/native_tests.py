"""The native library that tests call: built once from the current C files, with $CFLAGS (sanitizers, coverage).

A compiler warning is an error here, but not in a user's build.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import mmap
import os
import shlex
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from penstock.pipelines.native.build import SOURCES, BuildError, build, compiler
from penstock.pipelines.native.library import load
from penstock.pipelines.native.rows import Rows

BUILDS = Path(__file__).resolve().parents[3] / "build/native"


@functools.cache
def native() -> ctypes.CDLL:
    """Return the library; skips the test without a C compiler, and fails it if the files do not compile."""
    try:
        command = compiler()
    except BuildError as error:
        pytest.skip(str(error))
    flags = ["-Werror", *shlex.split(os.environ.get("CFLAGS", ""))]
    files = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h", ".py"))
    parts = [" ".join([*command, *flags]).encode(), *(path.read_bytes() for path in files)]
    library = BUILDS / f"{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:16]}.so"
    BUILDS.mkdir(parents=True, exist_ok=True)
    with (BUILDS / "lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of pytest-xdist's processes builds, the others wait
        if not library.exists():
            build(library, flags)
    loaded = load(library)
    assert loaded is not None, f"{library} cannot be loaded"
    return loaded


def to_images(rows: Rows, images: npt.NDArray[np.uint8]) -> Rows:
    """Return `rows`, set so that each fills images[row["row"]], uint8 [batch, height, width, channels]."""
    height, width = images.shape[1:3]
    rows["out_height"], rows["out_width"], rows["place"] = height, width, (0, 0, width, height)
    rows["out"] = rows["row"].astype(np.int64) * images[0].nbytes
    return rows


class Memory(ctypes.Structure):
    """pn_memory of native.h."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


def at_the_end_of_memory(data: bytes) -> npt.NDArray[np.uint8]:
    """Return a copy of `data` that is followed by inaccessible memory."""
    size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    last_page = ctypes.addressof(ctypes.c_char.from_buffer(memory, size))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(last_page), mmap.PAGESIZE, 0) == 0  # PROT_NONE
    memory[size - len(data) : size] = data
    return np.frombuffer(memory, np.uint8, len(data), size - len(data))
