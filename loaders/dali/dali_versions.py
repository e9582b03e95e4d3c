"""Versions of DALI's decoding libraries: nvImageCodec, nvJPEG and the GPU's driver."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import DaliGraph, GraphSettings, import_dali

# Earlier versions interpolate the chroma at the edges of a region without the samples beyond them (release notes of
# CUDA 13.3). nvJPEG has its own version numbers: 13.1 in CUDA 13.2, 13.2 in CUDA 13.3.
RIGHT_EDGES_SINCE = (13, 2)
_DRIVER_FILE = Path("/sys/module/nvidia/version")


def versions() -> str:
    """Return the versions of DALI and of its decoding libraries, as text."""
    dali, nvjpeg = _version("nvidia-dali-cuda130", "nvidia-dali-cuda120"), nvjpeg_version()
    used = f"nvJPEG {'.'.join(map(str, nvjpeg))}" if nvjpeg else "no nvJPEG"
    return f"DALI {dali} with nvImageCodec {codec_version()} and {used}"


def codec_version() -> str:
    """Return the version of nvImageCodec; "?" if it is not installed."""
    return _version("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12")


def _version(*names: str) -> str:
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "?"


def has_right_edges() -> bool:
    """Return whether nvJPEG decodes the edges of regions as in whole images; True if DALI does not have nvJPEG."""
    return (nvjpeg_version() or RIGHT_EDGES_SINCE) >= RIGHT_EDGES_SINCE


@functools.cache
def nvjpeg_version() -> tuple[int, ...] | None:
    """Return (major, minor, patch) of the nvJPEG that DALI uses in this process; None if DALI does not find one.

    The dynamic linker chooses it: an already loaded one, then LD_LIBRARY_PATH, DALI's wheels, the system. DALI
    loads it with its first decoder, even on the CPU. So a decoder is built here if there was none.
    """
    with contextlib.suppress(LoaderError):
        found = _ask_loaded()
        if found is None:
            graph = DaliGraph(GraphSettings(size=(8, 8), batch_size=1, threads=1, depth=1), coded=True)
            found = _ask_loaded()
            graph.close()
        return found
    return None


def _ask_loaded() -> tuple[int, ...] | None:
    cuda = str(getattr(import_dali(), "__cuda_version__", ""))[:2]  # its digits without dots
    for name in (f"libnvjpeg.so.{cuda}", "libnvjpeg.so"):  # the names that nvImageCodec uses
        with contextlib.suppress(OSError, AttributeError):
            ask = ctypes.CDLL(name, mode=os.RTLD_NOLOAD).nvjpegGetProperty
            numbers = [ctypes.c_int(-1) for _ in range(3)]
            if not any(ask(part, ctypes.byref(number)) for part, number in enumerate(numbers)):
                return tuple(number.value for number in numbers)
    return None


def driver_version() -> str:
    """Return the version of NVIDIA's driver, or the newest CUDA that it runs if the kernel does not report it (WSL)."""
    with contextlib.suppress(OSError):
        return _DRIVER_FILE.read_text("ascii").strip()
    cuda = driver_cuda()
    return "for CUDA {}.{}".format(*cuda) if cuda else "?"


def driver_cuda() -> tuple[int, int] | None:
    """Return (major, minor) of the newest CUDA that the installed driver runs; None without a driver."""
    number = ctypes.c_int(0)
    try:
        # Does not create a CUDA context and does not use GPU memory.
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return (number.value // 1000, number.value % 1000 // 10) if status == 0 and number.value else None
