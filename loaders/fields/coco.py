"""Reads the boxes and keypoints of a JSON file of COCO."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.fields.mask_files import sample_names
from penstock.loaders.sources.contract import Source
from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.fields.ragged import Ragged, find_elements


class CocoFields(NamedTuple):
    """Hold what a JSON file of COCO says of the samples of a source.

    Attributes:
        boxes: left, top, right, bottom, float32 [4], and class number of each.
        classes: names of the class numbers.
        points: keypoints of each box, float32 [k, 3]; None where the file has none.
        swaps: pairs of keypoints called left_... and right_...
    """

    boxes: Ragged
    classes: tuple[bytes, ...]
    points: Ragged | None
    swaps: tuple[tuple[int, int], ...]


class CocoDocument(NamedTuple):
    """Hold the lists of a JSON file of COCO, and the class number of each category id."""

    images: list[dict[str, Any]]
    categories: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    number_of: dict[Any, int]


def read_document(path: Any) -> CocoDocument:
    """Read a JSON file of COCO. Raises ValueError for another file, LoaderError E-MISSING, E-ACCESS, E-READ."""
    try:
        with open(path, "rb") as file:
            document = json.load(file)
        categories = sorted(document["categories"], key=lambda each: each["id"])
        for each in document["annotations"]:
            each["image_id"], each["category_id"]
        number_of = {each["id"]: number for number, each in enumerate(categories)}
        return CocoDocument([*document["images"]], categories, document["annotations"], number_of)
    except OSError as error:
        found = read_error(error, os.fsencode(path))
        raise LoaderError(found.code, found.cause, fix="pass a JSON file of COCO instances", path=found.path) from error
    except (KeyError, TypeError, ValueError) as error:
        raise _other_file(path, error) from None


def _other_file(path: Any, error: Exception) -> ValueError:
    what = f"{type(error).__name__}: {error}"
    return ValueError(f"{printable(str(path))} is no JSON file of COCO instances ({what})")


def read_coco(source: Source, path: Any) -> CocoFields:
    """Read the annotations of the samples of a source; crowds are left out. Raises ValueError, LoaderError."""
    images, categories, everything, number_of = read_document(path)
    annotations = [each for each in everything if not each.get("iscrowd")]
    try:
        image_ids = np.array([each["image_id"] for each in annotations], np.int64)
        given = np.array([each["bbox"] for each in annotations], np.float64).reshape(-1, 4)
        category_ids = [each["category_id"] for each in annotations]
    except (KeyError, TypeError, ValueError) as error:
        raise _other_file(path, error) from None
    numbers = np.array([number_of.get(each, -1) for each in category_ids], np.int64)
    for wrong in np.flatnonzero((numbers < 0) | (given[:, 2:] < 0).any(1) | ~np.isfinite(given).all(1))[:1]:
        which = f"annotation {annotations[wrong].get('id')} of image {image_ids[wrong]}"
        wanted = "a category of the file and bbox (x, y, width, height)"
        raise ValueError(f"{which} must have {wanted}, got {category_ids[wrong]} and {given[wrong].tolist()}")
    ids = find_images(source, images)
    order = np.argsort(image_ids, kind="stable")
    begins, ends = (np.searchsorted(image_ids[order], ids, side) for side in ("left", "right"))
    lengths = ends - begins
    chosen = order[find_elements(begins, lengths)]
    corners = np.concatenate((given[:, :2], given[:, :2] + given[:, 2:]), 1).astype(np.float32)
    boxes = Ragged(lengths, (corners[chosen], numbers[chosen]))
    classes = tuple(str(each.get("name", each["id"])).encode() for each in categories)
    names = next((each["keypoints"] for each in categories if each.get("keypoints")), None)
    if names is None:
        return CocoFields(boxes, classes, None, ())
    points = np.array([_keypoints(annotations[number], len(names)) for number in chosen.tolist()], np.float32)
    points = points.reshape(-1, len(names), 3)
    return CocoFields(boxes, classes, Ragged(lengths, (points,)), _mirrored(names))


def find_images(source: Source, images: list[dict[str, Any]]) -> npt.NDArray[np.int64]:
    """Return the id of the image of each sample: that of its name, or else of its last part where only one has it."""
    whole = {str(each["file_name"]): each["id"] for each in images}
    counts = Counter(map(os.path.basename, whole))
    last = {base: number for name, number in whole.items() if counts[base := os.path.basename(name)] == 1}
    found = []
    for index, name in enumerate(sample_names(source)):
        number = whole.get(name, last.get(os.path.basename(name)))
        if number is None:
            is_ambiguous = counts[os.path.basename(name)] > 1
            what = "has the last part of several names in the file" if is_ambiguous else "is not in the file"
            raise ValueError(
                f"sample {index} ({printable(name)}) {what}, which has {len(images):,} images: give it a file_name "
                "that is the sample's name"
            )
        found.append(number)
    return np.array(found, np.int64)


def _keypoints(annotation: dict[str, Any], count: int) -> npt.NDArray[np.float64]:
    points = np.array(annotation.get("keypoints") or [0] * (3 * count), np.float64)
    if points.size != 3 * count:
        raise ValueError(f"annotation {annotation.get('id')} has {points.size} numbers for {count} keypoints")
    points = points.reshape(count, 3)
    points[:, :2] += 0.5  # COCO counts from the centre of the first pixel
    return points


def _mirrored(names: list[str]) -> tuple[tuple[int, int], ...]:
    number_of = {name: number for number, name in enumerate(names)}
    pairs = ((number, number_of.get(f"right{name[4:]}")) for name, number in number_of.items() if name[:4] == "left")
    return tuple((left, right) for left, right in pairs if right is not None)
