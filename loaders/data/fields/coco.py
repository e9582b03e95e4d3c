"""Reads the boxes and keypoints of a COCO JSON file as fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.box_values import check_swaps, warn_of_shares
from penstock.loaders.data.fields.coco_document import (
    CocoDocument,
    FilePath,
    file_error,
    find_images,
    find_objects,
    read_document,
)
from penstock.loaders.data.fields.keypoint_pairs import find_pairs, has_lonely
from penstock.loaders.data.samples.columns import ArrayColumn, BytesColumn, RaggedColumn
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.step import Field
from penstock.pipelines.errors import printable
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged, find_elements
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

_MOST_PIXELS = 3e38  # limit of float32


def read_coco(
    source: Source,
    path: FilePath,
    swaps: Sequence[tuple[int | str, int | str]] | None,
    name: str,
    served: Callable[..., FieldKind],
) -> dict[str, Field]:
    """Return the fields of a source's samples: boxes, keypoints and image ids; crowds are left out.

    swaps: pairs of keypoints, by number or name; by default found by left and right in their names. name: name of the
    boxes field. served: makes its kind from the classes and their ids. Raises ValueError, LoaderError.
    """
    document = read_document(path)
    wanted = find_objects(document)
    images = find_images(source, document)
    image_of = document.image_of[wanted]
    given = _read_boxes(document, wanted)
    warn_of_shares(f"boxes of {printable(str(path))}", given)
    order = np.argsort(image_of, kind="stable")
    begins, ends = (np.searchsorted(image_of[order], images, side) for side in ("left", "right"))
    lengths = ends - begins
    chosen = order[find_elements(begins, lengths)]
    corners = np.concatenate((given[:, :2], given[:, :2] + given[:, 2:]), 1).astype(np.float32)[chosen]
    boxes = Ragged(lengths, (corners, document.class_of[wanted[chosen]], document.sizes[image_of[chosen]]))
    classes = tuple(each["name"].encode() for each in document.categories)
    kind = served(classes=classes, category_ids=tuple(each["id"] for each in document.categories))
    before, fields = "" if name == "boxes" else f"{name}_", {name: Field(kind, RaggedColumn(boxes))}
    names = _keypoint_names(document)
    if names:
        listed = [_read_keypoints(document, number, len(names)) for number in wanted[chosen].tolist()]
        points = Ragged(lengths, (np.array(listed, np.float32).reshape(-1, len(names), 3),))
        pairs = find_pairs(names) if swaps is None else check_swaps(swaps, len(names), names)
        unpaired = swaps is None and (not pairs or has_lonely(names, pairs))
        of_points = FieldKind(
            kind="keypoints", of=name, swaps=pairs, points=len(names), padded=kind.padded, unpaired=unpaired
        )
        fields[f"{before}keypoints"] = Field(of_points, RaggedColumn(points))
    else:
        _warn_of_points(document)
        if swaps is not None:
            raise file_error(path, "swaps are pairs of keypoints, but its categories have no keypoints")
    ids = [document.image_ids[number] for number in images.tolist()]
    if all(isinstance(each, int) for each in ids):
        of_images = Field(FieldKind(kind="integer"), ArrayColumn(np.array(ids, np.int64)))
    else:
        of_images = Field(FieldKind(kind="text"), BytesColumn([str(each).encode() for each in ids]))
    return {**fields, f"{before}image_ids": of_images}


def _read_boxes(document: CocoDocument, wanted: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Return x, y, width and height of the annotations `wanted`, float64 [n, 4]. Raises ValueError."""
    listed = [document.annotations[number].get("bbox") for number in wanted.tolist()]
    given = None
    with suppress(TypeError, ValueError, OverflowError):  # the first one is named below
        are_fours = all(isinstance(each, list) and len(each) == 4 for each in listed)
        given = np.array(listed, np.float64).reshape(-1, 4) if are_fours else None
    if given is not None and (given[:, 2:] >= 0).all() and (abs(given) <= _MOST_PIXELS).all():
        return given
    wrong = next(number for number, each in enumerate(listed) if not _is_box(each))
    which = document.which(int(wanted[wrong]))
    raise file_error(document.path, f"{which} must have a bbox of x, y, width and height, got {shown(listed[wrong])}")


def _is_box(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) == 4 and all(type(each) in (int, float) for each in value)
    return is_list and all(abs(each) <= _MOST_PIXELS for each in value) and min(value[2:]) >= 0


def _keypoint_names(document: CocoDocument) -> list[str]:
    """Return the names of the keypoints, if a category has any. Raises ValueError if categories have different ones."""
    having = [each for each in document.categories if each.get("keypoints")]
    for each in having:
        if not isinstance(each["keypoints"], list):
            what = f"category {shown(each['name'])} must have a list of names as its keypoints"
            raise file_error(document.path, f"{what}, got {shown(each['keypoints'])}")
    for each in having[1:]:
        if each["keypoints"] != having[0]["keypoints"]:
            both = f"categories {shown(having[0]['name'])} and {shown(each['name'])} have different keypoints"
            raise file_error(document.path, f"{both}: all categories with keypoints must have the same")
    return [str(name) for name in having[0]["keypoints"]] if having else []


def _warn_of_points(document: CocoDocument) -> None:
    """Warn of keypoints in a file if its categories do not name any."""
    given = [each.get("keypoints") for each in document.annotations]
    count = sum(isinstance(points, list) and any(points) for points in given)
    if count:
        warn_user(
            f"{printable(str(document.path))}: left out: the keypoints of {count:,} annotations, because no category "
            "of the file names them: add a list of names, keypoints, to the categories"
        )


def _read_keypoints(document: CocoDocument, annotation: int, count: int) -> npt.NDArray[np.float64]:
    given = document.annotations[annotation].get("keypoints")
    try:
        points = np.array(given or [0] * (3 * count), np.float64)
    except (TypeError, ValueError):
        points = np.full(1, np.nan)
    if points.shape != (3 * count,) or not np.isfinite(points).all():
        wanted = f"x, y and visibility of {count} keypoints"
        got = f"{points.size} numbers" if points.ndim == 1 and points.size > 1 else shown(given)
        raise file_error(document.path, f"{document.which(annotation)} must have {wanted}, got {got}")
    points = points.reshape(count, 3)
    points[:, :2] += 0.5  # COCO counts from the centre of the first pixel
    return points
