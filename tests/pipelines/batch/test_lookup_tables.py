"""Tables of 256 values: looked up by image and channel; equalize at the end of its range."""

from __future__ import annotations

import numpy as np
import torch
from augment_images import by_pillow, share_off

from penstock.pipelines.batch.lookup_tables import map_values
from penstock.pipelines.plan.augmentations import Op


def mapped(op: Op, images: np.ndarray, values: np.ndarray) -> torch.Tensor:
    found = torch.from_numpy(images.copy())
    map_values(found, np.full(len(images), op, np.int8), values)
    return found


def test_equalize_clips_as_pillow() -> None:
    """So few pixels that a step of the histogram is rounded down to one, and the spread runs past 255."""
    values = np.repeat(np.arange(0, 250, 2), 4).astype(np.uint8)
    images = np.stack([values, values[::-1], values // 2], -1)[None, None]
    assert share_off(mapped(Op.EQUALIZE, images, np.zeros(1)), by_pillow(Op.EQUALIZE, images, np.zeros(1))) == 0
