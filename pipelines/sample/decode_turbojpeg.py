"""Decodes ordinary JPEGs with PyTurboJPEG: 1.x with the system's libjpeg-turbo 2, 2.x with libjpeg-turbo 3."""

from __future__ import annotations

import importlib.metadata
import inspect
from typing import Any

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.sample.pixel_buffer import PixelMemory

_FIX = (
    "apt-get install libturbojpeg0 and pip install 'PyTurboJPEG>=1.8.2,<2' (libjpeg-turbo 2: Debian 12, Ubuntu 22.04) "
    "or 'PyTurboJPEG>=2' (libjpeg-turbo 3), or use decoder='simplejpeg'"
)

try:
    import turbojpeg
except ImportError as error:
    raise LoaderError("E-DEPENDENCY", f"PyTurboJPEG cannot be imported ({error})", fix=_FIX) from None


class _QuietTurboJPEG(turbojpeg.TurboJPEG):  # type: ignore[misc]
    """Drive TurboJPEG without Python warnings; libjpeg's last warning is kept in `warning`, errors raise OSError.

    Stopping below a crop makes libjpeg warn about extraneous bytes for every image. Python's `warnings` machinery is
    neither free nor thread-safe, so the method that reports warnings is replaced.
    """

    warning = ""

    def _TurboJPEG__report_error(self, handle: Any) -> None:
        self.warning = self._TurboJPEG__get_error_string(handle)
        if not jpeg.is_warning(self.warning):
            raise OSError(self.warning)


class TurbojpegDecoder:
    """Decode with the accurate DCT and fancy upsampling into reused memory (implements JpegDecoder)."""

    name = "turbojpeg"

    def __init__(self) -> None:
        if "dst" not in inspect.signature(_QuietTurboJPEG.decode).parameters:
            raise LoaderError("E-DEPENDENCY", "PyTurboJPEG is too old: 1.8.2 or newer is needed", fix=_FIX)
        try:
            self._turbo = _QuietTurboJPEG()
        except (RuntimeError, OSError) as error:
            raise LoaderError("E-DEPENDENCY", f"libturbojpeg cannot be used ({error})", fix=_FIX) from None
        self._memory = PixelMemory()

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        need = height * width * 3
        self._turbo.warning = ""
        target = self._memory.take(need)[:need].reshape(height, width, 3)
        try:
            pixels: Pixels = self._turbo.decode(
                data, pixel_format=turbojpeg.TJPF_RGB, flags=turbojpeg.TJFLAG_ACCURATEDCT, dst=target
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise LoaderError("E-CORRUPT", f"libjpeg: {error}") from None
        if pixels.shape != (height, width, 3):
            raise LoaderError("E-CORRUPT", f"decoded to {pixels.shape}, but the header declares {(height, width, 3)}")
        return pixels

    @property
    def warning(self) -> str:
        return str(self._turbo.warning)

    def version(self) -> str:
        return f"PyTurboJPEG {importlib.metadata.version('PyTurboJPEG')}"
