"""The last steps of a batch in the consumer: add targets, patches and fields after all rows are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.geometry import Geometry
from penstock.loaders.data.sources.contract import (
    FieldSource,
    Source,
    TargetSource,
    field_kinds_of,
    has_fields,
    has_moving_fields,
    has_targets,
)
from penstock.loaders.data.sources.source_faults import name_sample, naming_method
from penstock.loaders.make.engine_contract import HostBatch, Placed
from penstock.pipelines.errors import printable
from penstock.pipelines.fields.field_kinds import FieldKind, of_kind, pictures_of
from penstock.pipelines.fields.placement import (
    STILL,
    Floats,
    Size,
    corners_of,
    find_matrices,
    place_boxes,
    place_keypoints,
)
from penstock.pipelines.fields.ragged import Ragged, take_rows
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.plan.crops import BatchPlan
from penstock.pipelines.plan.moves import forward_matrices
from penstock.pipelines.sample.patches import view_image
from penstock.pipelines.targets import map_targets, parts_of

Placing = tuple[BatchPlan, Size, Floats]  # arguments of place_boxes


class ServedFields:
    """A step that adds the fields of a source to batches, and a Geometry if requested.

    Args:
        source: the source of the fields, which are empty in rows without a sample.
        is_upright: whether the pipeline applies EXIF orientations. If not, a warning names the first photo with an
            orientation and with fields that may refer to the upright image.
        with_geometry: add the field `geometry`: a Geometry, or a tuple of them for several views.
    """

    def __init__(self, source: Source, *, is_upright: bool, with_geometry: bool) -> None:
        self._source, self._is_upright, self._with_geometry = source, is_upright, with_geometry
        self._is_placed = with_geometry or has_moving_fields(source)
        self._has_warned = is_upright or not has_moving_fields(source)

    def __call__(self, batch: HostBatch) -> HostBatch:
        """Return the batch with its fields. With several views, fields that move with the image are tuples."""
        fields = self._look_up(batch) if has_fields(self._source) else batch.fields
        if self._with_geometry:
            views = [self._find_geometry(batch, view) for view in range(len(batch.augments))]
            fields = fields | {"geometry": views[0] if len(views) == 1 else tuple(views)}
        return replace(batch, fields=fields, is_placed=self._is_placed)

    def _find_geometry(self, batch: HostBatch, view: int) -> Geometry:
        """Return the geometry of the images of a view."""
        plan, size, matrices = _placing(batch, view)
        orientations = batch.exif if self._is_upright else np.where(batch.index >= 0, 1, 0).astype(np.uint8)
        placed = plan.windows, plan.places, plan.turns, plan.flips
        return Geometry(batch.sizes, orientations, *placed, find_matrices(plan, size, matrices))

    def _look_up(self, batch: HostBatch) -> dict[str, Any]:
        """Return the fields of the batch and of the source."""
        assert has_fields(self._source)
        kinds = self._source.field_kinds
        with naming_method("fields()"):
            rows, values = look_up_fields(self._source, batch.index)
            served: dict[str, Any] = {
                name: _spread(values[name], rows, len(batch.index), kind.rules.empty)
                for name, kind in kinds.items()
                if not kind.rules.moves
            }
            moved = [_move(batch, rows, kinds, values, view) for view in range(len(batch.augments))]
        if not self._has_warned:
            self._warn_of_turned(batch, rows, kinds, values)
        for name in moved[0]:
            views = tuple(view[name] for view in moved)
            served[name] = views[0] if len(views) == 1 else views
        return batch.fields | {name: served[name] for name in _in_order(kinds, served)}

    def _warn_of_turned(
        self, batch: HostBatch, rows: npt.NDArray[np.intp], kinds: dict[str, FieldKind], values: dict[str, Any]
    ) -> None:
        """Warn about the first photo with an ignored EXIF orientation, unless its fields surely fit the stored image.

        That is known for fields with an image size, if rotating the image would change its size.
        """
        orientations, sizes = batch.exif[rows], batch.sizes[rows]
        turned = np.flatnonzero(orientations > 1)
        if not len(turned):
            return
        tells = (orientations >= 5) & (sizes[:, 0] != sizes[:, 1])
        for name, kind in kinds.items():
            doubted = ~tells
            if kind.kind == "boxes":
                has_size = len(values[name].parts) > 2 and (values[name].parts[2] != 0).all()
                doubted = (values[name].lengths > 0) & (~tells | (not has_size))
            elif kind.kind == "keypoints" and not kind.of:
                doubted = np.ones(len(rows), bool)
            elif not kind.is_picture:
                continue
            for row in turned[doubted[turned]][:1].tolist():
                self._has_warned = True  # first: the warning may be an error
                which, orientation = name_sample(self._source, int(batch.index[rows[row]])), orientations[row]
                warn_user(
                    f"{printable(which)} has the EXIF orientation {orientation}, which is ignored, but its {name} may "
                    "refer to the upright image, as annotation tools show it: pass ImagePipeline(exif='apply') if so"
                )
                return


class ShownWarnings:
    """A step that shows the warnings of workers, each once, at the user's line that takes the batch."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(self, batch: HostBatch) -> HostBatch:
        """Return the batch. Raises a warning that the user has made an error."""
        for text, kind in batch.warned:
            if text not in self._shown:
                self._shown.add(text)  # first: the warning may be an error
                warn_user(text, kind)
        return batch


def look_up_fields(source: FieldSource, index: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.intp], dict[str, Any]]:
    """Return the rows with a sample, and their fields by name."""
    rows = np.flatnonzero(index >= 0)
    if len(rows):
        return rows, source.fields(index[rows].astype(np.int64))
    found = source.fields(np.zeros(1, np.int64))  # a user's source may not accept an empty list of samples
    return rows, {name: take_rows(value, rows) for name, value in found.items()}


def _placing(batch: HostBatch, view: int) -> Placing:
    """Return the crops and augmentations of a view's images, as arguments of place_boxes."""
    plan = batch.plan
    if plan.flips.ndim > 1:
        plan = BatchPlan._make(part[:, view] for part in plan)
    size = batch.output_sizes[view] if batch.output_sizes else None  # with patches, each image has a size
    moves = batch.augments[view]
    return plan, size, STILL if moves is None or size is None else forward_matrices(moves, size)


def _move(
    batch: HostBatch, rows: npt.NDArray[np.intp], kinds: dict[str, FieldKind], values: dict[str, Any], view: int
) -> dict[str, Any]:
    """Return the fields that move with the images of a view."""
    valid = batch.fields.get("patch_valid")
    outside = batch.index < 0 if valid is None else ~valid
    moved = batch.moved[view] if batch.moved else None
    if moved is None:
        moved = place_fields(kinds, values, rows, batch.sizes, _placing(batch, view))
    served: dict[str, Any] = {}
    for name, kind in pictures_of(kinds).items():
        served[name] = batch.extras[name][view]
        served[name].reshape(*outside.shape, -1, kind.channels)[outside] = kind.outside
    for name, placed in moved.items():
        served |= _serve_boxes(name, kinds, placed) if isinstance(placed, Ragged) else {name: placed}
    return served


def place_fields(
    kinds: Mapping[str, FieldKind],
    values: Mapping[str, Any],
    rows: npt.NDArray[np.intp],
    sizes: npt.NDArray[np.int32],
    placing: Placing,
) -> Placed:
    """Return boxes and keypoints in the coordinates of a batch's images, by field name.

    values: the fields of `rows` of the batch. sizes: (width, height) of the images of all rows, int32 [batch, 2].
    placing: arguments of place_boxes. Keypoints are float32 [batch, points, 3]; boxes are a Ragged of the batch:
    corners float32 [n, 4], classes int64 [n], and for each field of keypoints that belong to them float32 [n, points,
    3].
    """
    placed: dict[str, Ragged | npt.NDArray[np.float32]] = {}
    for name, kind in of_kind(kinds, "keypoints").items():
        placed[name] = alone = np.zeros((len(sizes), *np.shape(values[name])[1:]), np.float32)
        alone[rows] = place_keypoints(values[name], rows, kind, *placing)
    for name, kind in of_kind(kinds, "boxes").items():
        boxes = _all_rows(values[name], rows, len(sizes))
        boxes = boxes._replace(parts=boxes.parts[:2])  # workers compare the sizes; they are not served
        shown, kept = place_boxes(boxes, corners_of(boxes, kind, sizes), kind, *placing)
        parts = [shown.parts[0], shown.parts[1] + kind.first_class]
        for other, its in of_kind(kinds, "keypoints", name).items():
            points = _all_rows(values[other], rows, len(sizes)).keep(kept)
            parts.append(place_keypoints(points.parts[0], points.rows, its, *placing))
        placed[name] = Ragged(shown.lengths, tuple(parts))
    return placed


def _serve_boxes(name: str, kinds: Mapping[str, FieldKind], placed: Ragged) -> dict[str, Any]:
    """Return boxes, their classes and their keypoints by name; `placed` is a result of place_fields."""
    fills = {name: 0.0, f"{name}_classes": -1, **dict.fromkeys(of_kind(kinds, "keypoints", name), 0.0)}
    if kinds[name].padded:
        padded = dict(zip(fills, placed.pad(list(fills.values())), strict=True))
        return padded | {f"{name}_lengths": placed.lengths}
    return {part: Ragged(placed.lengths, (values,)) for part, values in zip(fills, placed.parts, strict=True)}


def _in_order(kinds: dict[str, FieldKind], served: dict[str, Any]) -> list[str]:
    """Return the names of the served values, each field followed by its classes and lengths."""
    own = [[name, f"{name}_classes", f"{name}_lengths"] for name in kinds]
    return [name for names in own for name in names if name in served]


def _all_rows(values: Ragged, rows: npt.NDArray[np.intp], count: int) -> Ragged:
    """Return the elements of `rows` as a batch of `count` rows. Raises ValueError for unequal lengths."""
    values.checked(len(rows))
    lengths = np.zeros(count, np.int64)
    lengths[rows] = values.lengths
    return values._replace(lengths=lengths)


def _spread(values: Any, rows: npt.NDArray[np.intp], count: int, empty: Any) -> Any:
    """Return the values of `rows` as a batch: int64 [count] for integers, or a list."""
    spread: Any = np.full(count, empty, np.int64) if isinstance(empty, int) else [empty] * count
    for row, value in zip(rows.tolist(), values, strict=True):
        spread[row] = value
    return spread


Step = Callable[[HostBatch], HostBatch]
_NO_LABEL = {"f": np.nan, "c": np.nan, "i": -1}


def finishing_steps(
    source: Source, patch: int | None, own_channels: int | None = None, *, is_upright: bool, with_geometry: bool
) -> list[Step]:
    """Return the steps for a batch of `source`, in order.

    patch: side of the patches that images are cut into, None for whole images; own_channels: channels of images of own
        sizes, None for images of one size; others: as in ServedFields.
    """
    steps: list[Step] = [ShownWarnings()]
    if has_targets(source):
        steps.append(partial(add_targets, source))
    if patch is not None:
        steps.append(partial(add_patches, patch))
    if has_fields(source) or with_geometry:
        steps.append(ServedFields(source, is_upright=is_upright, with_geometry=with_geometry))
    if own_channels is not None:
        steps.append(partial(split_images, own_channels, pictures_of(field_kinds_of(source))))
    return steps


def add_targets(source: TargetSource, batch: HostBatch) -> HostBatch:
    """Return the batch with the labels of `source`. Rows without a sample have the label NaN or -1.

    It is NaN for floats and -1 for integers, so that labels alone distinguish padding from samples. Other types (bool,
    unsigned integers), which only users' sources return, have 0.
    """
    index = batch.index
    with naming_method("targets()"):
        found = source.targets(np.maximum(index, 0))
        wrong = [part.shape for part in parts_of(found).values() if len(part) != len(index)]
        if wrong:
            raise ValueError(f"{len(index)} samples were requested, but the labels have shape {list(wrong[0])}")
    absent = index < 0
    if absent.any():
        found = map_targets(np.array, found)  # the source may keep the arrays that it returned
        for part in parts_of(found).values():
            part[absent] = _NO_LABEL.get(part.dtype.kind, 0)
    return replace(batch, labels=found)


def split_images(channels: int, pictures: Mapping[str, FieldKind], batch: HostBatch) -> HostBatch:
    """Return the batch with lists of its images [height, width, channels], and of its masks and image targets.

    Rows without a sample have images of 0 x 0 pixels. The images share the memory of the batch.
    """
    sizes = batch.plan.places[:, :1:-1].tolist()
    images = [
        image[: height * width * channels].view(height, width, channels)
        for image, (height, width) in zip(batch.images, sizes, strict=True)
    ]
    fields = dict(batch.fields)
    for name, kind in pictures.items():
        own = [
            view_image(row, width * kind.scale, height * kind.scale, kind.channels)
            for row, (height, width) in zip(batch.extras[name][0], sizes, strict=True)
        ]
        fields[name] = [each[:, :, 0] for each in own] if kind.target is None else own
    return replace(batch, images=images, fields=fields)


def add_patches(patch: int, batch: HostBatch) -> HostBatch:
    """Return the batch with the fields of its patches; both are 0 for padding.

    patch_coord, int64 [batch, length, 2], contains row and column of each patch; patch_valid is bool [batch, length].
    """
    columns, rows = (batch.plan.places[:, 2:, None].astype(np.int64) // patch).swapaxes(0, 1)
    numbers = np.arange(batch.images.shape[1])
    valid = numbers < columns * rows
    places = np.divmod(numbers, np.maximum(columns, 1))
    coordinates = np.stack(places, 2) * valid[:, :, None]
    return replace(batch, fields={"patch_coord": coordinates, "patch_valid": valid, **batch.fields})
