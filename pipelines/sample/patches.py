"""Images in the memory of a sequence of patches, and cutting them into these patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.image_types import Levels


def view_image(patches: npt.NDArray[Any], width: int, height: int, channels: int) -> Levels:
    """View the memory of a row of patches, [length, levels], as an image of a size that fits in it."""
    image: Levels = patches.reshape(-1)[: height * width * channels].reshape(height, width, channels)
    return image


def cut_rows(batch: npt.NDArray[Any], places: npt.NDArray[np.int32], patch: int) -> None:
    """Cut the image at the beginning of each row of `batch`, [rows, length, levels], into patches, in place.

    places: the images' places, int32 [rows, 4] as in BatchPlan. Patches are ordered left to right and top to bottom;
    levels in a patch are ordered as in an image [patch, patch, channels]. The rest of a row becomes zeros.
    """
    levels = batch.shape[2]
    for row, (width, height) in zip(batch, places[:, 2:].tolist(), strict=True):
        rows, columns = height // patch, width // patch
        image = view_image(row, width, height, levels // (patch * patch))
        strips = image.reshape(rows, patch, columns, levels // patch)
        row[: rows * columns] = strips.transpose(0, 2, 1, 3).reshape(rows * columns, levels)
        row[rows * columns :] = 0
