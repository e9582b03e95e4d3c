"""Checks boxes and keypoints that users pass as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.class_numbers import number_boxes
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

_MOST_SHARE = 1.25  # share of an image's side: estimated points may be outside the image
_VISIBLE = 2.0  # COCO's value for a visible point


def check_boxes(
    boxes: Sequence[object],
    classes: Sequence[Any] | None,
    names: Sequence[str] | Mapping[int, str] | None,
    num_samples: int,
    sizes: object = None,
) -> tuple[Ragged, tuple[bytes, ...]]:
    """Return boxes, float32 [k, 4] for each sample, with class numbers, and the class names.

    sizes: width and height of each image, integers [n, 2], returned as the third part. Raises ValueError.
    """
    _check_count("boxes", boxes, num_samples)
    arrays = [_as_boxes(each, index) for index, each in enumerate(boxes)]
    of_each = [[0] * len(array) for array in arrays] if classes is None else list(classes)
    _check_count("classes", of_each, num_samples)
    for index, own in enumerate(of_each):
        if not hasattr(own, "__len__") or isinstance(own, (str, bytes, Mapping)):
            what = "classes must be a list per sample with one class per box"
            raise ValueError(f"{what}, sample {index} has {shown(own)}")
    for index, (array, own) in enumerate(zip(arrays, of_each, strict=True)):
        if len(own) != len(array):
            raise ValueError(f"sample {index} has {len(array)} boxes and {len(own)} classes: pass one class per box")
    numbers, known = number_boxes([own.tolist() if hasattr(own, "tolist") else list(own) for own in of_each], names)
    lengths = np.array([len(array) for array in arrays], np.int64)
    corners = np.concatenate(arrays) if arrays else np.zeros((0, 4), np.float32)
    warn_of_shares("boxes", corners)
    if sizes is None:
        return Ragged(lengths, (corners, numbers)), known
    return Ragged(lengths, (corners, numbers, np.repeat(_as_sizes(sizes, num_samples), lengths, 0))), known


def warn_of_shares(what: str, places: npt.NDArray[np.number]) -> None:
    """Warn if all coordinates are near the first pixel of their image, like shares of its sides."""
    if places.size and abs(places).max() <= _MOST_SHARE and (places % 1).any():
        warn_user(
            f"all {what} are between -{_MOST_SHARE} and {_MOST_SHARE}, but must be in pixels: if they are shares of "
            "the image, multiply them by its width and height"
        )


def _as_sizes(sizes: object, num_samples: int) -> npt.NDArray[np.int32]:
    values = _as_array("sizes", sizes)
    if values.dtype.kind not in "iu" or values.shape != (num_samples, 2) or (values < 1).any():
        what = f"{values.dtype} {list(values.shape)}"
        raise ValueError(f"sizes must be width and height of each image, integers [{num_samples}, 2], got {what}")
    return values.astype(np.int32)


def check_keypoints(
    points: object, swaps: Sequence[tuple[int, int]], num_samples: int
) -> tuple[npt.NDArray[np.float32], tuple[tuple[int, int], ...]]:
    """Return keypoints, float32 [n, k, 3], and the pairs that a mirror image swaps. Raises ValueError."""
    values = _as_array("keypoints", points)
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
    wrong = np.flatnonzero(~np.isfinite(values.reshape(num_samples, -1)).all(1))
    if len(wrong):
        raise ValueError(f"keypoints must be finite numbers, but those of sample {wrong[0]} are not")
    warn_of_shares("keypoints", values[..., :2])
    return values.astype(np.float32), check_swaps(swaps, values.shape[1])


def check_swaps(swaps: Any, count: int, names: Sequence[str] = ()) -> tuple[tuple[int, int], ...]:
    """Return pairs of keypoints as numbers; `swaps` has numbers below `count` or `names`. Raises ValueError."""
    listed = swaps.tolist() if hasattr(swaps, "tolist") else swaps
    are_pairs = isinstance(listed, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in listed
    )
    numbers = [_number_of(each, names) for pair in listed for each in pair] if are_pairs else [-1]
    if any(not 0 <= number < count for number in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"swaps must be pairs of different keypoints from 0 to {count - 1}, got {shown(swaps)}")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _number_of(point: object, names: Sequence[str]) -> int:
    if isinstance(point, str) and names:
        if point not in names:
            raise ValueError(f"swaps has the name {shown(point)}, but the keypoints of the file are {', '.join(names)}")
        return names.index(point)
    return int(point) if isinstance(point, (int, np.integer)) and not isinstance(point, bool) else -1


def _as_array(what: str, values: Any) -> npt.NDArray[Any]:
    """Return numbers as an array. Raises ValueError for lists of different lengths."""
    try:
        return values.numpy(force=True) if hasattr(values, "detach") else np.asarray(values)
    except ValueError:
        raise ValueError(f"{what} must be numbers in lists of one length, got {shown(values)}") from None


def _as_boxes(boxes: object, index: int) -> npt.NDArray[np.float32]:
    values = _as_array(f"sample {index}: boxes", boxes)
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


def _check_count(what: str, values: object, num_samples: int) -> None:
    count = len(values) if isinstance(values, Sized) and not isinstance(values, (Mapping, str)) else None
    if count != num_samples:
        got = shown(values) if count is None else f"{count:,}"
        raise ValueError(f"{what} must be one list per sample ({num_samples:,}), got {got}")
