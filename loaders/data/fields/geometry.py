"""Geometry records where the pixels of served images come from, and maps boxes and points back."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.sample.orientation import swaps_sides, upright


@dataclass(frozen=True)
class Geometry:
    """How the image of each row of a batch was made from the pixels of a file, on the host.

    "The image" is the whole image as the pipeline reads it: upright with exif="apply", otherwise as stored.
    Coordinates are distances from its left and upper edge in pixels: the centre of the first pixel is 0.5. Rows without
    a sample are zeros.

    Attributes:
        sizes: int32 [batch, 2], width and height of the image.
        orientations: uint8 [batch], the EXIF orientation applied at reading, 1 to 8; 1 for none.
        windows: int32 [batch, 4], the crop as (x, y, width, height) in the image; with resize_first the whole image.
        places: int32 [batch, 4], place of the crop in the served image, before turns and flips; with resize_first that
            of the whole image, which extends beyond the served one.
        turns: uint8 [batch], 2 if rows become columns, plus 1 if rows are then reversed.
        flips: bool [batch], whether the result is mirrored left to right.
        matrices: float64 [batch, 2, 3], all of this as one affine map, including augmentations: a point (x, y) of the
            image is at matrix[:, :2] @ (x, y) + matrix[:, 2] in the served image.
    """

    sizes: npt.NDArray[np.int32]
    orientations: npt.NDArray[np.uint8]
    windows: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    turns: npt.NDArray[np.uint8]
    flips: npt.NDArray[np.bool_]
    matrices: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, rows: npt.NDArray[np.intp]) -> Geometry:
        """Return chosen rows."""
        return Geometry(*(getattr(self, field.name)[rows] for field in fields(self)))

    def boxes_to_image(self, row: int, boxes: Any, *, clip: bool = True, stored: bool = False) -> Any:
        """Map boxes of the served image `row` back to the image.

        boxes: [..., 4], left, top, right and bottom in pixels of the served image, a tensor or an array; the result has
        the same type, shape and dtype. If augmentations rotated the image, it is the smallest box around the four
        corners. clip: cut the boxes to the image. stored: map to the image as stored, before the EXIF orientation was
        applied. Raises ValueError for a row without a sample.
        """
        given = _as_float64(boxes, 4)
        corners = given[..., ((0, 1), (2, 1), (2, 3), (0, 3))]
        moved = _move(corners, self._back(row, stored=stored))
        found = np.concatenate((moved.min(-2), moved.max(-2)), -1)
        if clip:
            sides = self.sizes[row]
            sides = sides[::-1] if stored and swaps_sides(int(self.orientations[row])) else sides
            found = found.clip(0, np.tile(sides, 2))
        return _like(found, boxes)

    def points_to_image(self, row: int, points: Any, *, stored: bool = False) -> Any:
        """Map points of the served image `row` back to the image.

        points: [..., 2], x and y in pixels of the served image, or [..., 3] with a third value that stays unchanged, a
        tensor or an array; the result has the same type, shape and dtype. stored: as in boxes_to_image. Raises
        ValueError for a row without a sample.
        """
        given = _as_float64(points, 2, 3)
        moved = _move(given[..., :2], self._back(row, stored=stored))
        return _like(np.concatenate((moved, given[..., 2:]), -1), points)

    def _back(self, row: int, *, stored: bool) -> npt.NDArray[np.float64]:
        """Return the matrix [2, 3] from the served image to the image, or to the stored one."""
        if not self.matrices[row].any():
            raise ValueError(f"row {row} has no sample: leave out rows with index -1")
        forward = np.concatenate((self.matrices[row], [[0, 0, 1]]))
        if stored:
            forward = forward @ _turn_upright(int(self.orientations[row]), *self.sizes[row].tolist())
        found: npt.NDArray[np.float64] = np.linalg.inv(forward)[:2]
        return found


def _turn_upright(orientation: int, width: int, height: int) -> npt.NDArray[np.float64]:
    """Return the matrix [3, 3] from the stored image to the upright one of that size, computed from its corners."""
    corners = np.array((((0, 0), (1, 0)), ((0, 1), (1, 1))))  # (x, y) of those of a square, [row, column, 2]
    stored = upright(corners * ((height, width) if swaps_sides(orientation) else (width, height)), orientation)
    of_each, wanted = (np.insert(each.reshape(4, 2)[:3], 2, 1, 1) for each in (stored, corners * (width, height)))
    found: npt.NDArray[np.float64] = np.linalg.solve(of_each, wanted).T.round().astype(np.float64)
    return found


def _move(points: npt.NDArray[np.float64], matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    moved: npt.NDArray[np.float64] = points @ matrix[:, :2].T + matrix[:, 2]
    return moved


def _as_float64(values: object, *lengths: int) -> npt.NDArray[np.float64]:
    array = values.detach().cpu().double().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim < 1 or array.shape[-1] not in lengths or array.dtype.kind not in "iuf":
        wanted = " or ".join(f"[..., {length}]" for length in lengths)
        raise ValueError(f"coordinates must be numbers {wanted}, got {array.dtype} {list(array.shape)}")
    return array.astype(np.float64)


def _like(found: npt.NDArray[np.float64], given: object) -> torch.Tensor | npt.NDArray[np.floating]:
    """Return `found` as a tensor or an array, as `given` is; integers become float32."""
    if isinstance(given, torch.Tensor):
        dtype = given.dtype if given.dtype.is_floating_point else torch.float32
        return torch.from_numpy(found).to(given.device, dtype)
    kept = getattr(given, "dtype", np.dtype(np.float32))
    return found.astype(kept if kept.kind == "f" else np.float32)
