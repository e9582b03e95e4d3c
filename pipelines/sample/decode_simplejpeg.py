"""Decodes ordinary JPEGs with simplejpeg; its wheel bundles libjpeg-turbo."""

from __future__ import annotations

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import Pixels
from penstock.pipelines.jpeg import header as jpeg
from penstock.pipelines.sample.pixel_buffer import PixelMemory

try:
    import simplejpeg
except ImportError as error:  # a declared dependency: missing only in incomplete installations
    raise LoaderError(
        "E-DEPENDENCY", f"simplejpeg cannot be imported ({error})", fix="pip install simplejpeg"
    ) from None


class SimplejpegDecoder:
    """Decode with the accurate DCT and fancy upsampling into reused memory (implements JpegDecoder)."""

    name = "simplejpeg"

    def __init__(self) -> None:
        self._memory = PixelMemory()
        self.warning = ""

    def rgb(self, data: bytes, height: int, width: int) -> Pixels:
        need = height * width * 3
        memory = self._memory.take(need)
        self.warning = ""
        try:
            # strict, to get the message: the lenient mode treats an error that follows a warning as repaired
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=memory, strict=True)
        except ValueError as error:
            self.warning = str(error)
            if not jpeg.is_warning(self.warning):
                raise LoaderError("E-CORRUPT", f"libjpeg: {error}") from None
            if jpeg.is_header_warning(self.warning):  # then simplejpeg has stopped before decoding
                from penstock.pipelines.sample.decode_pillow import PillowJpegDecoder

                return PillowJpegDecoder().rgb(data, height, width)
            pixels = memory[:need].reshape(height, width, 3)
        if pixels.shape != (height, width, 3):
            raise LoaderError("E-CORRUPT", f"decoded to {pixels.shape}, but the header declares {(height, width, 3)}")
        return pixels

    def version(self) -> str:
        return f"simplejpeg {simplejpeg.__version__}"


def find_first_message(data: bytes) -> str:
    """Return libjpeg's first warning or error when decoding a JPEG; "" if there is none."""
    try:  # at an eighth of the size, in grey: reads all coded data, but computes few pixels
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, min_factor=8, strict=True)
    except ValueError as error:
        return str(error)
    return ""
