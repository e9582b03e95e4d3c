"""EXIF orientation of formats other than JPEG, whose orientations are in the corpus of test_decode.py."""

from __future__ import annotations

import numpy as np
import pytest
from odd_images import encoded, oriented, textured
from PIL import Image

from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.spec import ImagePipeline


def decoder(name: str, exif: str = "apply") -> ImageDecoder:
    return ImageDecoder(ImagePipeline(exif=exif), name)


@pytest.mark.parametrize("fmt", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_other_formats_carry_one_too(fmt: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = textured(21, 34)
    data = encoded(stored, fmt, exif=exif, **({"lossless": True} if fmt == "WEBP" else {}))
    apply, ignore = decoder("auto"), decoder("auto", "ignore")
    assert np.array_equal(apply.full(data), oriented(stored, orientation))
    assert np.array_equal(ignore.full(data), stored)
    probe = apply.probe(data)
    assert np.array_equal(apply.window(data, probe, (3, 2, 7, 11)), oriented(stored, orientation)[2:13, 3:10])
