"""BatchLayout: the positions of a batch's arrays in the memory of its slot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.spec import ImagePipeline

_ALIGNMENT = 64
Memory = TypeVar("Memory", npt.NDArray[np.uint8], torch.Tensor)


class Part(NamedTuple):
    """An array of a batch: `shape` and `dtype` of one of its rows."""

    shape: tuple[int, ...]
    dtype: str = "|u1"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The torch dtype."""
        return torch.from_numpy(np.empty(0, self.dtype)).dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class BatchLayout(NamedTuple):
    """The arrays of a batch, one after the other in its slot.

    Attributes:
        batch_size: rows of each array.
        images: arrays of the images of each view.
        crop_sizes: height and width of each view's images before transforms, in pixels.
        extras: other arrays that workers make by name: masks and image targets, one per view, and tokens of texts, one
            for all views.
        patch: side of the patches, in pixels, into which the image of each row is cut; 0 for whole images.
        crops: input of the transforms of each view, in a worker's memory; () without transforms.
        row_pixels: with images of own sizes, the pixels for which each row has memory; the row begins with its image.
            0 for images of one size.
    """

    batch_size: int
    images: tuple[Part, ...]
    crop_sizes: tuple[tuple[int, int], ...] = ()
    extras: tuple[tuple[str, tuple[Part, ...]], ...] = ()
    patch: int = 0
    crops: tuple[Part, ...] = ()
    row_pixels: int = 0

    @property
    def has_places(self) -> bool:
        """Whether the size of the image in a row is that of its place; if not, rows are images of one size."""
        return self.patch > 0 or self.row_pixels > 0

    @property
    def num_views(self) -> int:
        """Number of views of each image."""
        return len(self.images)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All arrays, in order."""
        return self.images + tuple(part for _, views in self.extras for part in views)

    def first_extra(self, name: str) -> int:
        """Return the position of an extra's first view in `parts`."""
        names = [other for other, views in self.extras for _ in views]
        return len(self.images) + names.index(name)

    @property
    def offsets(self) -> list[int]:
        """Return where each array begins, and where the free memory after the last one begins, in bytes."""
        ends, end = [0], 0
        for part in self.parts:
            end += -(-self.batch_size * part.row_bytes // _ALIGNMENT) * _ALIGNMENT
            ends.append(end)
        return ends

    @property
    def num_bytes(self) -> int:
        """Bytes of a slot."""
        return self.offsets[-1]

    def parts_in(self, memory: Memory) -> list[tuple[Part, Memory]]:
        """Return each array's part and its bytes in `memory`, an array or a tensor: uint8 [num_bytes or more]."""
        sizes = [self.batch_size * part.row_bytes for part in self.parts]
        begins = zip(self.offsets, sizes, self.parts, strict=False)
        return [(part, memory[begin : begin + size]) for begin, size, part in begins]

    def arrays(self, memory: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], ...]:
        """Return all arrays of the batch in `memory`, uint8 [num_bytes or more]: [batch, *shape] each."""
        parts = self.parts_in(memory)
        return tuple(own.view(part.dtype).reshape(self.batch_size, *part.shape) for part, own in parts)


@dataclass(frozen=True)
class Slot:
    """The memory of a slot, or of a part of its rows.

    Attributes:
        layout: positions of the batch's arrays in `memory`.
        memory: uint8 [bytes].
        all_rows: batch_row [batch].
        first, end: the rows of this part; by default all.
    """

    layout: BatchLayout
    memory: npt.NDArray[np.uint8]
    all_rows: npt.NDArray[np.void]
    first: int = 0
    end: int | None = None

    @cached_property
    def rows(self) -> npt.NDArray[np.void]:
        """The records of these rows, batch_row [rows]."""
        return self.all_rows[self.first : self.end]

    @cached_property
    def offsets(self) -> list[int]:
        """Where the rows of each array begin in `memory`, in bytes."""
        parts = zip(self.layout.offsets, self.layout.parts, strict=False)
        return [begin + self.first * part.row_bytes for begin, part in parts]

    @cached_property
    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        """All arrays of the rows, [rows, ...]."""
        return tuple(array[self.first : self.end] for array in self.layout.arrays(self.memory))

    @property
    def images(self) -> tuple[npt.NDArray[np.generic], ...]:
        """The images of each view, [rows, height, width, channels]."""
        return self.arrays[: self.layout.num_views]

    @property
    def extras(self) -> dict[str, tuple[npt.NDArray[np.generic], ...]]:
        """The other arrays that workers make, [rows, ...] for each view or for all views, by name."""
        arrays = iter(self.arrays[self.layout.num_views :])
        return {name: tuple(itertools.islice(arrays, len(views))) for name, views in self.layout.extras}


def image_layout(pipelines: Sequence[ImagePipeline], batch_size: int) -> BatchLayout:
    """Return the layout of a batch of images, [batch, height, width, channels] for each view.

    Images of own sizes are [batch, most_pixels * channels].
    """
    if pipelines[0].size is None:
        (one,) = pipelines
        part = Part((one.most_pixels * one.channels,), np.dtype(one.sample_dtype).str)
        return BatchLayout(batch_size, (part,), row_pixels=one.most_pixels)
    parts = [((*each.output_size, each.channels), np.dtype(each.sample_dtype).str) for each in pipelines]
    return BatchLayout(batch_size, tuple(Part(*part) for part in parts), tuple(each.output_size for each in pipelines))


def whole_layout(
    layout: BatchLayout, is_whole: Sequence[bool], size: tuple[int, int], pictures: Collection[str]
) -> BatchLayout:
    """Return `layout` with images and `pictures` of `size`, (height, width), in the views with whole images.

    pictures: names of the masks and image targets among the extras.
    """

    def sized(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        pairs = zip(parts, is_whole, strict=True)
        return tuple(part._replace(shape=(*size, *part.shape[2:])) if whole else part for part, whole in pairs)

    sizes = zip(layout.crop_sizes, is_whole, strict=True)
    return layout._replace(
        images=sized(layout.images),
        crop_sizes=tuple(size if whole else own for own, whole in sizes),
        extras=tuple((name, sized(parts) if name in pictures else parts) for name, parts in layout.extras),
    )


def patch_layout(
    pipeline: ImagePipeline, batch_size: int, patch: int, length: int, pictures: Mapping[str, FieldKind]
) -> BatchLayout:
    """Return the layout of a batch of patches, [batch, length, patch * patch * channels].

    pictures: masks and image targets by name, which are cut into patches like the images.
    """
    part = Part((length, patch * patch * pipeline.channels), np.dtype(pipeline.sample_dtype).str)
    extras = tuple(
        (name, (Part((length, math.prod(kind.picture_shape(patch, patch))), np.dtype(kind.dtype).str),))
        for name, kind in pictures.items()
    )
    return BatchLayout(batch_size, (part,), extras=extras, patch=patch)
