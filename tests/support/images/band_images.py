"""Arrays as .npy files, and decoding with any number of channels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from penstock.pipelines import ImagePipeline
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.sample.decode import ImageDecoder


def keeping(channels: int, depth: Any = 32, **more: Any) -> ImagePipeline:
    """A pipeline of `channels` that serves levels between 0 and 1, with depth=32 unchanged."""
    return ImagePipeline(channels=channels, depth=depth, mean=(0.0,) * channels, std=(1.0,) * channels, **more)


def decode(data: bytes, channels: int, depth: int = 32, **more: Any) -> np.ndarray:
    """Return the whole image."""
    return ImageDecoder(keeping(channels, depth, **more)).full(data)


def refuse(data: bytes, channels: int, depth: int = 32) -> LoaderError:
    """Return the error of decoding."""
    with pytest.raises(LoaderError) as caught:
        decode(data, channels, depth)
    return caught.value


def npy(levels: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """An array as a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, levels, version=version)
    return file.getvalue()


def grey_tiff(levels: np.ndarray, bits: int, photometric: int) -> bytes:
    """A TIFF of grey levels [h, w] of any number of bits; photometric: 1, or 0 for levels that count from white."""
    import tifffile

    file = io.BytesIO()
    image = np.zeros(levels.shape, np.uint8 if bits <= 8 else np.uint16)
    tifffile.imwrite(file, image, photometric="minisblack", metadata=None, rowsperstrip=len(levels))
    data = bytearray(file.getvalue())
    rows = (np.array([[level >> bit & 1 for bit in range(bits)[::-1]] for level in row]).ravel() for row in levels)
    strip = b"".join(np.packbits(row.astype(np.uint8)).tobytes() for row in rows)
    strip = levels.astype("<u2").tobytes() if bits == 16 else strip
    with tifffile.TiffFile(io.BytesIO(bytes(data))) as found:
        start = found.pages[0].dataoffsets[0]
        for tag, value in ((258, bits), (262, photometric), (279, len(strip))):
            entry = found.pages[0].tags[tag].valueoffset
            data[entry : entry + 2] = value.to_bytes(2, "little")
    data[start : start + len(strip)] = strip
    return bytes(data)
