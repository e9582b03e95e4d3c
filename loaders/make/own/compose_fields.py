"""ComposeFields: pass the fields that move with an image to albumentations, and read its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from penstock.pipelines.fields.field_kinds import PICTURES, FieldKind, of_kind, pictures_of
from penstock.pipelines.messages.checked import shown

Floats = npt.NDArray[np.float64]
_BOX_FORMATS = ("pascal_voc", "albumentations", "coco", "yolo", "cxcywh")
_NONE: tuple[str, tuple[str, ...]] = "", ()  # format and label fields if there are no such fields
_DATA = {"bbox": "bboxes", "keypoint": "keypoints"}
_SLIVER = 1e-3  # pixels: rounding error of float32 for a box that was moved out of the image
_CENTER = 0.5  # albumentations counts keypoints from the centre of the first pixel; ours count from its edge
_MIRRORS = ("HorizontalFlip", "VerticalFlip", "Flip", "Transpose", "D4", "SquareSymmetry")
_OF_KEYPOINT = {"x": 0, "y": 1}
_FILL = {"a": 0.0, "s": 1.0, "z": 0.0}  # other values in a keypoint's format: angle, scale, depth


class WrongResultError(Exception):
    """A transform returned an invalid result."""


class RowFields(NamedTuple):
    """The fields that move with the image of one row, by name.

    Attributes:
        pictures: masks [height, width] and image targets [height, width, channels].
        boxes: corners float32 [n, 4] in pixels, classes int64 [n], and for each field of keypoints that belong to the
            boxes [n, points, 3].
        points: float32 [points, 3], x, y and visibility; zeros for missing ones.
    """

    pictures: dict[str, npt.NDArray[Any]]
    boxes: dict[str, tuple[npt.NDArray[Any], ...]]
    points: dict[str, npt.NDArray[Any]]


def is_albumentations(function: object) -> bool:
    """Return whether a transform is from albumentations, by the module of its class, without an import."""
    return any(base.__module__.partition(".")[0] == "albumentations" for base in type(function).__mro__)


def takes_fields(function: object) -> bool:
    """Return whether a transform is from albumentations and moves pixels or has parameters for fields."""
    if not is_albumentations(function):
        return False
    inner = getattr(function, "transforms", ())
    return (
        any(base.__name__ == "DualTransform" for base in type(function).__mro__)
        or any(_params_of(function, kind) is not None for kind in _DATA)
        or any(takes_fields(each) for each in (inner if isinstance(inner, (list, tuple)) else ()))
    )


def find_mirror(function: object) -> str | None:
    """Return the name of the first mirroring transform within an albumentations transform; None without one."""
    if type(function).__name__ in _MIRRORS:
        return type(function).__name__
    inner = getattr(function, "transforms", ())
    found = map(find_mirror, inner if isinstance(inner, (list, tuple)) else ())
    return next((name for name in found if name is not None), None)


class ComposeFields:
    """Convert RowFields into arguments of an albumentations transform, and its results into RowFields.

    One mask is passed as `mask`, several as `masks`; each image target by its name, which the transform's
    additional_targets must contain, [height, width] if it has one channel; all boxes as `bboxes`, all visible keypoints
    as `keypoints`, in the formats of the transform's bbox_params and keypoint_params. Classes are its label_fields, or
    the fifth value of each box without label_fields. If a box or keypoint must be identified, its number is added as
    the last value, which albumentations keeps. Raises ValueError for a transform without these parameters.

    Attributes:
        names: names of the fields.
        sided: names of keypoint fields that may have left and right points. A mirror does not swap them, unless
            label fields identify each point afterwards.
    """

    def __init__(self, function: Any, kinds: Mapping[str, FieldKind]) -> None:
        """Store the kinds of the fields that move with the image, by name."""
        self._kinds, self.names = kinds, list(kinds)
        self._masks = list(of_kind(kinds, "mask"))
        self._targets = list(of_kind(kinds, "image"))
        _check_targets(function, {name: kinds[name] for name in self._targets})
        self._boxes = list(of_kind(kinds, "boxes"))
        self._points = list(of_kind(kinds, "keypoints"))
        self._of = {box: list(of_kind(kinds, "keypoints", box)) for box in self._boxes}
        of_boxes = [name for names in self._of.values() for name in names]
        self._numbers_boxes = len(self._boxes) > 1 or bool(of_boxes)
        self._box_format, self._box_labels = _NONE
        if self._boxes:
            hint = "bbox_params=A.BboxParams('pascal_voc', label_fields=['classes'])"
            self._box_format, self._box_labels = _find_params(function, "bbox", self._boxes, hint)
            if self._box_format not in _BOX_FORMATS:
                known = ", ".join(_BOX_FORMATS)
                raise ValueError(f"bbox_params must have a format of {known}, got {self._box_format!r}")
        self._point_format, self._point_labels = _NONE
        if self._points or of_boxes:
            hint = "keypoint_params=A.KeypointParams('xy')"
            self._point_format, self._point_labels = _find_params(
                function, "keypoint", [*self._points, *of_boxes], hint
            )
            if set(self._point_format) - {*_OF_KEYPOINT, *_FILL} or not {*_OF_KEYPOINT} <= set(self._point_format):
                raise ValueError(f"keypoint_params must have a format such as 'xy', got {self._point_format!r}")
        points = () if self._point_labels else (*self._points, *of_boxes)
        self.sided = [name for name in points if kinds[name].swaps or (kinds[name].unpaired and kinds[name].points > 1)]

    def example(self, height: int, width: int) -> RowFields:
        """Return sample fields of an image for a trial: a box and all keypoints in the middle."""
        corners = np.array([[width / 4, height / 4, width * 3 / 4, height * 3 / 4]], np.float32)
        middle = np.array([width / 2, height / 2, 2], np.float32)

        pictures = pictures_of(self._kinds)

        def points(name: str) -> npt.NDArray[np.float32]:
            return np.tile(middle, (self._kinds[name].points, 1))

        return RowFields(
            {name: np.zeros(kind.picture_shape(height, width), kind.dtype) for name, kind in pictures.items()},
            {box: (corners, np.zeros(1, np.int64), *(points(of)[None] for of in self._of[box])) for box in self._boxes},
            {name: points(name) for name in self._points},
        )

    def arguments(self, fields: RowFields, size: tuple[int, int]) -> dict[str, Any]:
        """Return the transform's arguments besides the image of `size`, (height, width)."""
        given: dict[str, object] = {}
        for name in self._targets:
            target = fields.pictures[name].copy()
            given[name] = target[..., 0] if target.shape[2] == 1 else target
        masks = [fields.pictures[name].copy() for name in self._masks]
        if masks:
            given |= {"mask": masks[0]} if len(masks) == 1 else {"masks": masks}
        if self._boxes:
            corners = np.concatenate([fields.boxes[name][0] for name in self._boxes]).astype(np.float64)
            classes = np.concatenate([fields.boxes[name][1] for name in self._boxes]).tolist()
            rows = _from_corners(corners, self._box_format, size).tolist()
            if not self._box_labels:
                rows = [[*row, of] for row, of in zip(rows, classes, strict=True)]
            if self._numbers_boxes:
                rows = [[*row, number] for number, row in enumerate(rows)]
            given["bboxes"] = [tuple(row) for row in rows]
            given |= {label: list(classes) for label in self._box_labels}
        if self._point_format:
            points, within = self._all_points(fields)
            seen = np.flatnonzero(points[:, 2] > 0).tolist()
            places = (points[:, :2] - _CENTER).clip(0)
            columns = [places[seen, _OF_KEYPOINT[of]] if of in _OF_KEYPOINT else _FILL[of] for of in self._point_format]
            values = np.stack([*np.broadcast_arrays(*columns, np.array(seen, np.float64))], 1)
            given["keypoints"] = [tuple(row) for row in values.tolist()]
            given |= {label: within[seen].tolist() for label in self._point_labels}
        return given

    def take(self, returned: Mapping[str, Any], fields: RowFields, size: tuple[int, int]) -> RowFields:
        """Return the fields of `returned`, the transform's result for `fields`. Raises WrongResultError."""
        pictures = {name: self._take_picture(name, returned[name], size) for name in self._targets}
        if self._masks:
            found = [returned["mask"]] if len(self._masks) == 1 else returned["masks"]
            for name, mask in zip(self._masks, found, strict=True):
                pictures[name] = self._take_picture(name, mask, size)
        points = self._take_points(returned, fields, size) if self._point_format else None
        boxes = self._take_boxes(returned, fields, size, points) if self._boxes else {}
        alone = {}
        if points is not None:
            alone = {name: part[0] for name, part in self._split(fields, points).items() if name in self._points}
        return RowFields(pictures, boxes, alone)

    def _take_picture(self, name: str, picture: object, size: tuple[int, int]) -> npt.NDArray[np.generic]:
        kind, what = self._kinds[name], PICTURES[self._kinds[name].kind]
        found = _as_numbers(what, picture)
        shape = kind.picture_shape(*size)
        found = found[..., None] if len(shape) == 3 and found.ndim == 2 else found
        kept = found.astype(kind.dtype)
        if found.shape != shape or not (kept.dtype.kind == "f" or np.array_equal(kept, found)):
            wanted, got = f"{kind.dtype} {list(shape)}", f"{found.dtype} {list(found.shape)}"
            raise WrongResultError(f"transform must return the {what} {name!r} as {wanted}, got {got}")
        return kept

    def _take_boxes(
        self, returned: Mapping[str, object], fields: RowFields, size: tuple[int, int], points: Floats | None
    ) -> dict[str, tuple[npt.NDArray[np.generic], ...]]:
        given = sum(len(fields.boxes[name][0]) for name in self._boxes)
        width = 4 + (not self._box_labels) + self._numbers_boxes
        rows = _as_rows("bboxes", returned["bboxes"], width)
        if self._box_labels:
            classes = _as_classes(returned[self._box_labels[0]], len(rows))
        else:
            classes = _as_classes(rows[:, 4], len(rows))
        of = _as_numbers_of("bboxes", rows[:, -1], given) if self._numbers_boxes else np.zeros(len(rows), np.int64)
        corners = _to_corners(rows[:, :4], self._box_format, size).clip(0, [size[1], size[0]] * 2)
        kept = (corners[:, 2:] - corners[:, :2] >= _SLIVER).all(1)
        corners, classes, of = corners[kept].astype(np.float32), classes[kept], of[kept]
        by_name = {} if points is None else self._split(fields, points)
        taken, first = {}, 0
        for name in self._boxes:
            count = len(fields.boxes[name][0])
            mine = (of >= first) & (of < first + count) if self._numbers_boxes else np.ones(len(of), bool)
            inner = of[mine] - first
            taken[name] = (corners[mine], classes[mine], *(by_name[each][inner] for each in self._of[name]))
            first += count
        return taken

    def _take_points(self, returned: Mapping[str, object], fields: RowFields, size: tuple[int, int]) -> Floats:
        """Return all keypoints, [n, 3] in the order of _all_points; zeros for removed ones."""
        points, within = self._all_points(fields)
        rows = _as_rows("keypoints", returned["keypoints"], len(self._point_format) + 1)
        numbers = _as_numbers_of("keypoints", rows[:, -1], len(points))
        places = rows[:, [self._point_format.index(letter) for letter in "xy"]] + _CENTER
        visible = points[numbers, 2]
        if self._point_labels:  # they may have changed, such as left and right in a mirror
            now = _as_classes(returned[self._point_labels[0]], len(rows))
            numbers = numbers - within[numbers] + now
            if not np.array_equal(within.take(numbers, mode="clip"), now):
                got = shown(now.tolist())
                raise WrongResultError(f"transform must return the numbers of keypoints as labels, got {got}")
        inside = ((places >= 0) & (places < size[::-1])).all(1)
        taken = np.zeros_like(points)
        taken[numbers[inside]] = np.concatenate((places, visible[:, None]), 1)[inside]
        return taken

    def _sets(self, fields: RowFields) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Yield each field of keypoints and its sets, [sets, points, 3]."""
        for name in self._points:
            yield name, fields.points[name][None]
        for box in self._boxes:
            yield from zip(self._of[box], fields.boxes[box][2:], strict=True)

    def _all_points(self, fields: RowFields) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return all keypoints, [n, 3], and the number of each in its set."""
        sets = [each for _, each in self._sets(fields)]
        points = np.concatenate([np.reshape(each, (-1, 3)) for each in sets]).astype(np.float64)
        within = [np.tile(np.arange(each.shape[1], dtype=np.int64), len(each)) for each in sets]
        return points, np.concatenate(within)

    def _split(self, fields: RowFields, points: Floats) -> dict[str, npt.NDArray[np.float32]]:
        """Return the sets of each field among `points`, which are in the order of _all_points."""
        parts, first = {}, 0
        for name, sets in self._sets(fields):
            count = sets.shape[0] * sets.shape[1]
            parts[name] = points[first : first + count].reshape(sets.shape).astype(np.float32)
            first += count
        return parts


def _params_of(function: object, kind: str) -> object:
    """Return bbox_params or keypoint_params of a transform: an object, a dict, or None."""
    params = getattr(function, f"{kind}_params", None)
    processors = getattr(function, "processors", None)
    if params is None and isinstance(processors, Mapping):
        params = getattr(processors.get(_DATA[kind]), "params", None)
    return params


def _check_targets(function: object, kinds: Mapping[str, FieldKind]) -> None:
    """Raise ValueError for image targets that a transform cannot move."""
    declared = getattr(function, "additional_targets", None) or getattr(function, "_additional_targets", {})
    missing = [name for name in kinds if name not in declared]
    if missing:
        hint = f"additional_targets={dict.fromkeys(missing, 'image')}"
        raise ValueError(
            f"transform needs additional_targets to move {', '.join(missing)}: pass A.Compose([...], {hint}), with "
            "'mask' for values that changes of colour must not touch, or transform_moves=False if it does not move "
            "pixels"
        )
    for name, kind in kinds.items():
        if kind.scale > 1:
            raise ValueError(
                f"transform cannot move {name}, which has {kind.scale} times the sides of its image: use the "
                "pipeline's crops and flips, and pass transform_moves=False to a transform that does not move pixels"
            )


def _find_params(function: object, kind: str, names: list[str], hint: str) -> tuple[str, tuple[str, ...]]:
    """Return format and label fields of a transform's bbox_params or keypoint_params."""
    params = _params_of(function, kind)
    if params is None:
        raise ValueError(
            f"transform needs {kind}_params to move {', '.join(names)}: pass A.Compose([...], {hint}), or "
            "transform_moves=False if it does not move pixels"
        )
    get = params.get if isinstance(params, Mapping) else lambda name, usual=None: getattr(params, name, usual)
    labels = get("label_fields", None) or ()
    form = get("format", None) or get("coord_format", None)  # its name in version 2 and in AlbumentationsX
    if get("bbox_type", "hbb") != "hbb":
        form = get("bbox_type", None)  # rotated boxes have five values
    return str(form), (labels,) if isinstance(labels, str) else tuple(labels)


def _from_corners(corners: Floats, form: str, size: tuple[int, int]) -> Floats:
    sides = np.array([size[1], size[0]] * 2, np.float64)
    if form == "pascal_voc":
        return corners
    if form == "albumentations":
        return corners / sides
    low, extent = corners[:, :2], corners[:, 2:] - corners[:, :2]
    if form == "coco":
        return np.concatenate((low, extent), 1)
    return np.concatenate((low + extent / 2, extent), 1) / (sides if form == "yolo" else 1)


def _to_corners(boxes: Floats, form: str, size: tuple[int, int]) -> Floats:
    sides = np.array([size[1], size[0]] * 2, np.float64)
    if form == "pascal_voc":
        return boxes
    if form == "albumentations":
        return boxes * sides
    if form == "coco":
        return np.concatenate((boxes[:, :2], boxes[:, :2] + boxes[:, 2:]), 1)
    boxes = boxes * sides if form == "yolo" else boxes
    center, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate((center - half, center + half), 1)


def _as_numbers(what: str, value: object) -> npt.NDArray[np.generic]:
    found = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if found.dtype.kind not in "biuf":
        raise WrongResultError(f"transform must return {what} as numbers, got {shown(value)}")
    return found


def _as_rows(what: str, value: Any, width: int) -> Floats:
    """Return boxes or keypoints as float64 [n, width]."""
    if not len(value):
        return np.zeros((0, width))
    try:
        found = _as_numbers(what, value).astype(np.float64)
    except ValueError:  # rows of different lengths
        found = np.zeros((0, 0))
    if found.ndim != 2 or found.shape[1] != width:
        wanted = f"{what} with {width} values each, as they were passed"
        raise WrongResultError(f"transform must return {wanted}, got {shown(value[0])}")
    if not np.isfinite(found).all():
        raise WrongResultError(f"transform must return finite {what}, got {shown(value)}")
    return found


def _as_classes(value: Any, count: int) -> npt.NDArray[np.int64]:
    found = _as_numbers("labels", value) if len(value) else np.zeros(0, np.int64)
    if found.shape != (count,) or not np.array_equal(np.rint(found), found):
        raise WrongResultError(f"transform must return {count} whole numbers as labels, got {shown(value)}")
    return found.astype(np.int64)


def _as_numbers_of(what: str, column: Floats, count: int) -> npt.NDArray[np.int64]:
    numbers = np.rint(column).astype(np.int64)
    if ((numbers < 0) | (numbers >= count) | (numbers != column)).any():
        raise WrongResultError(f"transform must keep the last value of each of the {what}: it is its number")
    return numbers
