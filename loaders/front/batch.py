"""Batch is what a loader delivers, with what was drawn for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


@dataclass(frozen=True)
class Batch:
    """Hold a delivered batch: pixels, labels, and what was drawn for each row.

    Where the loader pads it has `batch_size` rows: those of padding have index -1, and label -1 (NaN for floats).

    Attributes:
        images: [batch, 3, height, width], channels_last unless asked for otherwise, on the loader's device; a tuple of
            these where there are several views. The geometry below is then [batch, views, ...]. With a PatchBudget
            patches, [batch, length, patch * patch * 3].
        labels: int64 [batch] of class numbers; with mixup or cutmix float32 [batch, num_classes]; of sources with other
            labels (see with_labels) a tensor, or a dict of tensors by name. On the loader's device.
        index: int64 [batch], positions in the sorted source.
        windows: int32 [batch, 4], crops as (x, y, width, height) in the source image, in pixels.
        flips: bool [batch], whether the image is mirrored.
        places: int32 [batch, 4], where in the image its crop lies, before it is turned.
        turns: uint8 [batch], how the image is turned; see BatchPlan.
        epoch: number of the epoch.
        step: number of the step within the epoch.
        fields: what the source has next to images and labels, by name; see with_fields. With a PatchBudget also
            patch_coord, int64 [batch, length, 2], row and column of each patch, and patch_valid, bool [batch, length],
            False for padding. With with_geometry=True also `geometry`, a Geometry, of several views a tuple of these.
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
        """Return what an iteration over data with fields, or over patches, yields."""
        index = {"index": torch.from_numpy(self.index)} if with_index else {}
        images = "patches" if "patch_valid" in self.fields else "images"
        return {images: self.images, "labels": self.labels, **self.fields, **index}
