"""Masks as files: every value is restored, from the smallest kind of file that can store all values."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from penstock.pipelines.fields.masks import decode_mask, encode_mask


@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0, 255, "PNG"), (0, 256, "PNG"), (7, 65535, "PNG"), (0, 65536, "TIFF"), (-1, 3, "TIFF"), (-(2**31), 0, "TIFF")],
)
def test_every_value_is_restored(low: int, high: int, kind: str) -> None:
    mask = np.array([[low, high, 1], [high, low, 0]], np.int64)
    data = encode_mask(mask)
    assert Image.open(io.BytesIO(data)).format == kind
    assert decode_mask(data).tolist() == mask.tolist()
