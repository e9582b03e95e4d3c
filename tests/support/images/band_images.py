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
