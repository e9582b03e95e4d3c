"""Checks boxes and keypoints that users pass as arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.pipelines.checked import shown
from penstock.pipelines.fields.ragged import Ragged

_VISIBLE = 2.0  # COCO's visibility of a point that is not hidden


def check_boxes(
    boxes: Sequence[Any],
    classes: Sequence[Any] | None,
    names: Sequence[str] | Mapping[int, str] | None,
    num_samples: int,
    sizes: Any = None,
) -> tuple[Ragged, tuple[bytes, ...]]:
    """Return boxes, float32 [k, 4] of each sample, with their class numbers, and the names of these.

    sizes: width and height of each image, integers [n, 2], which then are the third part. Raises ValueError.
    """
    _check_count("boxes", boxes, num_samples)
    arrays = [_as_boxes(each, index) for index, each in enumerate(boxes)]
    of_each = [[0] * len(array) for array in arrays] if classes is None else list(classes)
    _check_count("classes", of_each, num_samples)
    for index, (array, own) in enumerate(zip(arrays, of_each, strict=True)):
        if len(own) != len(array):
            raise ValueError(f"sample {index} has {len(array)} boxes and {len(own)} classes: give each box one class")
    numbers, known = number_classes([own.tolist() if hasattr(own, "tolist") else list(own) for own in of_each], names)
    lengths = np.array([len(array) for array in arrays], np.int64)
    corners = np.concatenate(arrays) if arrays else np.zeros((0, 4), np.float32)
    if sizes is None:
        return Ragged(lengths, (corners, numbers)), known
    return Ragged(lengths, (corners, numbers, np.repeat(_as_sizes(sizes, num_samples), lengths, 0))), known


def _as_sizes(sizes: Any, num_samples: int) -> npt.NDArray[np.int32]:
    values = sizes.numpy(force=True) if hasattr(sizes, "detach") else np.asarray(sizes)
    if values.dtype.kind not in "iu" or values.shape != (num_samples, 2) or (values < 1).any():
        what = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"sizes must be width and height of each image, integers [{num_samples}, 2], got {what}")
    return values.astype(np.int32)


def checked_names(names: Any) -> tuple[bytes, ...] | None:
    """Return class names by number, of a list or of a dict of number -> name; None for None. Raises ValueError."""
    if names is None:
        return None
    listed = names.tolist() if hasattr(names, "tolist") else names  # an array, or a column of a data frame
    if isinstance(names, Mapping):
        if set(names) != set(range(len(names))):
            raise ValueError(f"names must have the numbers from 0 to {len(names) - 1}, got {shown(list(names))}")
        listed = [names[number] for number in range(len(names))]
    if not isinstance(listed, (list, tuple)) or not all(isinstance(each, (str, bytes)) for each in listed):
        raise ValueError(f"names must be a list of class names or a dict of number -> name, got {shown(names)}")
    return tuple(map(os.fsencode, listed))


def number_classes(
    of_each: Sequence[Sequence[Any]], names: Sequence[str] | Mapping[int, str] | None
) -> tuple[npt.NDArray[np.int64], tuple[bytes, ...]]:
    """Return the class numbers of all boxes, and what they are called: `names`, or names sorted. Raises ValueError."""
    known = checked_names(names)
    flat = [(index, label) for index, labels in enumerate(of_each) for label in labels]
    are_names = bool(flat) and isinstance(flat[0][1], (str, bytes))
    if are_names:
        encoded = [(index, os.fsencode(label)) for index, label in flat]
        known = tuple(sorted({label for _, label in encoded})) if known is None else known
        number_of = {name: number for number, name in enumerate(known)}
        if len(number_of) < len(known):
            twice = next(name for number, name in enumerate(known) if number_of[name] != number)
            raise ValueError(f"names must be different where boxes have names, got {shown(os.fsdecode(twice))} twice")
        for index, label in encoded:
            if label not in number_of:
                raise ValueError(
                    f"sample {index} has a box of the unknown class {shown(os.fsdecode(label))}: add it to names"
                )
        return np.array([number_of[label] for _, label in encoded], np.int64), known
    highest = np.inf if known is None else len(known) - 1
    for index, label in flat:
        if not isinstance(label, (int, np.integer)) or not 0 <= label <= highest:
            wanted = "at least 0" if known is None else f"from 0 to {highest}"
            raise ValueError(f"sample {index} has a box of class {shown(label)}: class numbers must be {wanted}")
    return np.array([label for _, label in flat], np.int64), known or ()


def check_keypoints(
    points: Any, swaps: Sequence[tuple[int, int]], num_samples: int
) -> tuple[npt.NDArray[np.float32], tuple[tuple[int, int], ...]]:
    """Return keypoints, float32 [n, k, 3], and the pairs that are swapped in a mirror. Raises ValueError."""
    values = points.numpy(force=True) if hasattr(points, "detach") else np.asarray(points)
    if (
        values.dtype.kind not in "iuf"
        or values.ndim != 3
        or values.shape[2] not in (2, 3)
        or len(values) != num_samples
    ):
        what = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"keypoints must be numbers [{num_samples}, k, 3] or [{num_samples}, k, 2], got {what}")
    if values.shape[2] == 2:
        values = np.concatenate((values, np.full((*values.shape[:2], 1), _VISIBLE)), 2)
    _refuse_nonfinite(values.reshape(num_samples, -1), "keypoints")
    return values.astype(np.float32), check_swaps(swaps, values.shape[1])


def check_swaps(swaps: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """Return pairs of keypoint numbers below `count`. Raises ValueError."""
    pairs = tuple((int(left), int(right)) for left, right in swaps)
    numbers = [number for pair in pairs for number in pair]
    if any(not 0 <= number < count for number in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"swaps must be pairs of different keypoints from 0 to {count - 1}, got {shown(pairs)}")
    return pairs


def _as_boxes(boxes: Any, index: int) -> npt.NDArray[np.float32]:
    values = boxes.numpy(force=True) if hasattr(boxes, "detach") else np.asarray(boxes)
    if values.size == 0:
        return np.zeros((0, 4), np.float32)
    if values.ndim != 2 or values.shape[1] != 4 or values.dtype.kind not in "iuf":
        raise ValueError(f"sample {index}: boxes must be numbers [k, 4], got {values.dtype} {list(values.shape)}")
    corners = values.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(corners).all(1) | (corners[:, 2:] < corners[:, :2]).any(1))
    if len(wrong):
        box = shown(values[wrong[0]].tolist())
        raise ValueError(f"sample {index}: a box must be left, top, right, bottom (not width and height), got {box}")
    return corners


def _refuse_nonfinite(values: npt.NDArray[Any], what: str) -> None:
    wrong = np.flatnonzero(~np.isfinite(values).all(1))
    if len(wrong):
        raise ValueError(f"{what} must be finite numbers, those of sample {wrong[0]} are not")


def _check_count(what: str, values: Any, num_samples: int) -> None:
    is_list = hasattr(values, "__len__") and not isinstance(values, (Mapping, str))
    if not is_list or len(values) != num_samples:
        got = f"{len(values):,}" if is_list else shown(values)
        raise ValueError(f"{what} must be one list per sample ({num_samples:,}), got {got}")
