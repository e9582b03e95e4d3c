"""Decodes masks and cuts windows of them by nearest neighbour."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.errors import LoaderError
from penstock.pipelines.image_types import TRANSPOSED, UPSIDE_DOWN, Window

Mask = npt.NDArray[Any]
_ONE_CHANNEL = ("1", "L", "P", "I", "I;16", "I;16B")  # Pillow's modes whose pixels are one whole number


def window_of_mask(
    mask: Mask,
    window: Window,
    place: Window,
    out_size: tuple[int, int],
    turn: int,
    flip: bool,
    ignore_index: int,
    out: Mask | None = None,
) -> Mask:
    """Return the window of a mask, integers [h, w], as BatchPlan describes it for an image: [height, width].

    Each output pixel has the value of the source pixel under its centre, exactly as Pillow's NEAREST has it, which
    torchvision takes for PIL images; the image's bilinear filter has the same centre. Pixels outside of `place` are
    `ignore_index`. The result is in `out` if that is given.
    """
    height, width = out_size
    whole = np.empty(out_size, mask.dtype) if out is None else out
    turned = whole[:, ::-1] if flip else whole
    turned = turned[::-1] if turn & UPSIDE_DOWN else turned
    turned = turned.T if turn & TRANSPOSED else turned
    rows, columns = _sources(window[1], window[3], place[3]), _sources(window[0], window[2], place[2])
    if place != (0, 0, width, height):
        turned[...] = ignore_index
    inside = turned[place[1] : place[1] + place[3], place[0] : place[0] + place[2]]
    inside[...] = mask[rows].take(columns, 1)
    return whole


def _sources(begin: int, length: int, count: int) -> npt.NDArray[np.intp]:
    """Return the source pixel under the centre of each of `count` output pixels over `length` source pixels.

    A centre between two pixels goes where Pillow's sum of steps in float64 ends up.
    """
    steps = np.full(count, length / count)
    steps[0] /= 2
    return begin + np.cumsum(steps).astype(np.intp).clip(max=length - 1)


def encode_mask(mask: Mask) -> bytes:
    """Return a mask, integers [h, w], as a file from which decode_mask reads the same values.

    That is a PNG for values of 8 and 16 bits, and a TIFF for others. Raises LoaderError E-UNSUPPORTED for other arrays.
    """
    from PIL import Image

    low, high = (int(mask.min()), int(mask.max())) if mask.size and mask.dtype.kind in "biu" else (0, -1)
    types = [
        kind for kind in (np.uint8, np.uint16, np.int32) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max
    ]
    if mask.ndim != 2 or high < low or not types:
        cause = f"a mask must be integers [height, width] of 32 bits at most, got {mask.dtype} {list(mask.shape)}"
        raise LoaderError("E-UNSUPPORTED", cause, fix="give each image a mask of its size")
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mask, types[0])).save(file, "TIFF" if types[0] is np.int32 else "PNG")
    return file.getvalue()


def decode_mask(data: bytes | Mask) -> Mask:
    """Return the values of a mask, integers [h, w]: palette indices, or grey levels as numbers from 0 on.

    A grey PNG of 1, 2 or 4 bits has the values 0 to 1, 3 or 15.

    Raises LoaderError E-CORRUPT, E-UNSUPPORTED for a mask of several channels or a JPEG, which changes values.
    """
    if isinstance(data, np.ndarray):
        return data
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode not in _ONE_CHANNEL or image.format == "JPEG":
                cause = f"a mask must have one channel without loss, this is a {image.format} of mode {image.mode}"
                raise LoaderError("E-UNSUPPORTED", cause, fix="save masks as PNG, grey or with a palette")
            step = _step_of_levels(image.format, data)
            values = np.asarray(image.convert("L") if image.mode == "1" else image)
            bits = image.mode == "1"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise LoaderError("E-CORRUPT", f"the mask cannot be decoded: {error}") from error
    return (values > 0).view(np.uint8) if bits else values // step if step > 1 else values


def _step_of_levels(form: str | None, data: bytes) -> int:
    """Return what Pillow multiplies the levels of a grey PNG of 2 or 4 bits by."""
    is_grey_png = form == "PNG" and len(data) > 25 and data[25] == 0
    return {2: 85, 4: 17}.get(data[24], 1) if is_grey_png else 1
