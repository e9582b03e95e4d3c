"""BatchLayout says where the arrays of a batch lie in the memory of its slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.spec import ImagePipeline

_ALIGNMENT = 64


class Part(NamedTuple):
    """Describe an array of a batch: `shape` and `dtype` of one of its rows."""

    shape: tuple[int, ...]
    dtype: str = "|u1"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        return torch.from_numpy(np.empty(0, self.dtype)).dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class BatchLayout(NamedTuple):
    """Describe the arrays of a batch, which follow each other in its slot.

    Attributes:
        batch_size: rows of each array.
        images: arrays of the images of each view.
        extras: arrays of other things that workers make, such as masks, by name.
    """

    batch_size: int
    images: tuple[Part, ...]
    extras: tuple[tuple[str, Part], ...] = ()

    @property
    def num_views(self) -> int:
        """Number of views of each image."""
        return len(self.images)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All arrays, in their order."""
        return self.images + tuple(part for _, part in self.extras)

    @property
    def offsets(self) -> list[int]:
        """Return where each array begins, and at last where the free memory does, in bytes."""
        ends, end = [0], 0
        for part in self.parts:
            end += -(-self.batch_size * part.row_bytes // _ALIGNMENT) * _ALIGNMENT
            ends.append(end)
        return ends

    @property
    def num_bytes(self) -> int:
        """Bytes of a slot."""
        return self.offsets[-1]

    def arrays(self, memory: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], ...]:
        """Return all arrays of the batch in `memory`, uint8 [num_bytes or more]: [batch, *shape] each."""
        return tuple(
            memory[begin : begin + self.batch_size * part.row_bytes]
            .view(part.dtype)
            .reshape(self.batch_size, *part.shape)
            for begin, part in zip(self.offsets, self.parts, strict=False)
        )


class Slot(NamedTuple):
    """Hold the memory of one slot.

    Attributes:
        layout: where the arrays of the batch lie in `memory`.
        memory: uint8 [bytes].
        rows: batch_row [batch].
    """

    layout: BatchLayout
    memory: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.void]

    @property
    def images(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """The images of each view, [batch, height, width, channels]."""
        return self.layout.arrays(self.memory)[: self.layout.num_views]

    @property
    def extras(self) -> dict[str, npt.NDArray[Any]]:
        """The other arrays that workers make, [batch, ...], by name."""
        layout = self.layout
        names = [name for name, _ in layout.extras]
        return dict(zip(names, layout.arrays(self.memory)[layout.num_views :], strict=True))


def image_layout(pipelines: Sequence[ImagePipeline], batch_size: int) -> BatchLayout:
    """Return the layout of a batch of images, [batch, height, width, channels] of levels for each view."""
    parts = [((*each.size, each.channels), np.dtype(each.sample_dtype).str) for each in pipelines]
    return BatchLayout(batch_size, tuple(Part(*part) for part in parts))
