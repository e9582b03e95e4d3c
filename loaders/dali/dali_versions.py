"""Names the versions of what decodes for DALI: nvImageCodec, nvJPEG and the GPU's driver."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.dali_graph import DaliGraph, GraphSettings, import_dali

# Before it the chroma at the edges of a region is interpolated without the samples beyond them (release notes of CUDA
# 13.3). nvJPEG has numbers of its own: that of CUDA 13.2 is 13.1, that of CUDA 13.3 is 13.2.
RIGHT_EDGES_SINCE = (13, 2)
_DRIVER_FILE = Path("/sys/module/nvidia/version")


def versions() -> str:
    """Name the versions of DALI and of the libraries that decode for it."""
    dali, nvjpeg = _version("nvidia-dali-cuda130", "nvidia-dali-cuda120"), nvjpeg_version()
    used = f"nvJPEG {'.'.join(map(str, nvjpeg))}" if nvjpeg else "no nvJPEG"
    return f"DALI {dali} with nvImageCodec {codec_version()} and {used}"


def codec_version() -> str:
    """Return the version of nvImageCodec; "?" where it is not installed."""
    return _version("nvidia-nvimgcodec-cu13", "nvidia-nvimgcodec-cu12")


def _version(*names: str) -> str:
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            return version(name)
    return "?"


def has_right_edges() -> bool:
    """Return whether nvJPEG decodes the edges of regions as those of whole images; True where DALI has no nvJPEG."""
    return (nvjpeg_version() or RIGHT_EDGES_SINCE) >= RIGHT_EDGES_SINCE


@functools.cache
def nvjpeg_version() -> tuple[int, ...] | None:
    """Return (major, minor, patch) of the nvJPEG that DALI uses in this process; None where it finds none.

    The dynamic linker chooses it: one that is loaded already, then LD_LIBRARY_PATH, DALI's wheels, the system. DALI
    loads it with its first decoder, also one on the CPU. So such a decoder is built here, unless there was one.
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
    cuda = str(getattr(import_dali(), "__cuda_version__", ""))[:2]  # its digits without points
    for name in (f"libnvjpeg.so.{cuda}", "libnvjpeg.so"):  # by which nvImageCodec asks for it
        with contextlib.suppress(OSError, AttributeError):
            ask = ctypes.CDLL(name, mode=os.RTLD_NOLOAD).nvjpegGetProperty
            numbers = [ctypes.c_int(-1) for _ in range(3)]
            if not any(ask(part, ctypes.byref(number)) for part, number in enumerate(numbers)):
                return tuple(number.value for number in numbers)
    return None


def driver_version() -> str:
    """Return the version of NVIDIA's driver; that of the newest CUDA it runs where the kernel does not tell (WSL)."""
    with contextlib.suppress(OSError):
        return _DRIVER_FILE.read_text("ascii").strip()
    cuda = driver_cuda()
    return "for CUDA {}.{}".format(*cuda) if cuda else "?"


def driver_cuda() -> tuple[int, int] | None:
    """Return (major, minor) of the newest CUDA that the installed driver runs; None without a driver."""
    number = ctypes.c_int(0)
    try:
        # Creates no CUDA context and takes no memory of the GPU.
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return (number.value // 1000, number.value % 1000 // 10) if status == 0 and number.value else None
