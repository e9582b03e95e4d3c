"""Batch: the pixels and labels that a loader delivers, with the random values drawn for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class Batch:
    """A delivered batch: pixels, labels, and the random values drawn for each row.

    If the loader pads, a batch has `batch_size` rows. Padding rows have index -1 and label -1 (NaN for floats).

    Attributes:
        images: [batch, 3, height, width], channels_last by default, on the loader's device. With several views, a tuple
            of these; the geometry below is then [batch, views, ...]. With a PatchBudget, patches [batch, length,
            patch * patch * 3].
        labels: int64 [batch] of class numbers; with mixup or cutmix float32 [batch, num_classes]; for sources with
            other labels (see with_labels) a tensor, or a dict of tensors by name. On the loader's device.
        index: int64 [batch], positions in the sorted source.
        windows: int32 [batch, 4], crops as (x, y, width, height) in the source image, in pixels.
        flips: bool [batch], whether the image is mirrored.
        places: int32 [batch, 4], crops as (x, y, width, height) in the output image, before turn and flip.
        turns: uint8 [batch], how the image is turned (rows become columns, rows reversed); see BatchPlan.
        epoch: number of the epoch.
        step: number of the step within the epoch.
        fields: the source's other data by name; see with_fields. A PatchBudget adds patch_coord, int64 [batch, length,
            2], row and column of each patch, and patch_valid, bool [batch, length], False for padding.
            with_geometry=True adds `geometry`, a Geometry, or with several views a tuple of these.
    """

    images: Any
    labels: Any
    index: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int32]
    flips: npt.NDArray[np.bool_]
    places: npt.NDArray[np.int32]
    turns: npt.NDArray[np.uint8]
    epoch: int
    step: int
    fields: dict[str, Any]

    def as_dict(self, *, with_index: bool) -> dict[str, Any]:
        """Return the dict that an iteration over data with fields, or over patches, yields."""
        index = {"index": torch.from_numpy(self.index)} if with_index else {}
        images = "patches" if "patch_valid" in self.fields else "images"
        return {images: self.images, "labels": self.labels, **self.fields, **index}
