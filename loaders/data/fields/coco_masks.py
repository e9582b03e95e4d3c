"""Draws the segmentations of a COCO JSON file as masks."""

from __future__ import annotations

import json
from collections import defaultdict
from types import ModuleType
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.coco_document import (
    FilePath,
    Json,
    file_error,
    find_images,
    find_objects,
    read_document,
)
from penstock.loaders.data.samples.columns import BytesColumn
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.messages.checked import shown


class CocoMasks:
    """A column of masks that are drawn when they are read.

    of: "classes" for the class number of each pixel plus 1, and 0 for background, with smaller objects over larger ones
    and including crowds; "instances" for the number of the object in its image, from 1, without crowds: the number of
    its box among all boxes of the image.

    Raises ValueError for segmentations that cannot be drawn, LoaderError as read_document, E-DEPENDENCY.
    """

    def __init__(self, source: Source, path: FilePath, of: str, dtype: str) -> None:
        document = read_document(path)
        of_image: dict[int, list[tuple[int, Json]]] = defaultdict(list)
        wanted = np.arange(len(document.annotations)) if of == "classes" else find_objects(document)
        of_each = (each[wanted].tolist() for each in (document.image_of, document.class_of))
        for which, image, number in zip(wanted.tolist(), *of_each, strict=True):
            objects = of_image[image]
            objects.append((1 + (number if of == "classes" else len(objects)), document.annotations[which]))
        drawn = []
        for image in find_images(source, document).tolist():
            sides, objects = document.sizes[image, ::-1].tolist(), of_image[image]
            if not all(sides):
                which = f"image {shown(document.image_ids[image])}"
                raise file_error(path, f"{which} must have width and height to draw its segmentations")
            for value, each in objects:
                if wrong := _find_fault(each, sides, value, int(np.iinfo(dtype).max)):
                    raise file_error(path, f"annotation {each.get('id')} {wrong}")
            if of == "classes":
                objects = sorted(objects, key=lambda both: -(both[1].get("area") or _measure(both[1]["segmentation"])))
            drawn.append(json.dumps([*sides, [(value, each["segmentation"]) for value, each in objects]]).encode())
        self._drawn, self._dtype = BytesColumn(drawn), dtype

    def read(self, index: int) -> npt.NDArray[Any]:
        """Return the mask of sample `index`, integers [height, width]."""
        height, width, objects = json.loads(self._drawn.read(index))
        mask = np.zeros((height, width), self._dtype)
        for value, outline in objects:
            if isinstance(outline, list):
                coco = _import_pycocotools()
                outline = coco.merge(coco.frPyObjects(outline, height, width))
            counts = _read_counts(outline["counts"])
            inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts)  # down the columns
            mask.T[inside.reshape(width, height)] = value
        return mask

    def digest(self) -> bytes:
        """Return a digest of the segmentations."""
        return self._drawn.digest() + self._dtype.encode()


def _find_fault(annotation: Json, sides: list[Any], value: int, highest: int) -> str:
    """Return why pycocotools would misread an annotation or could not draw it, in words; "" if it is valid."""
    outline, area = annotation.get("segmentation"), annotation.get("area")
    if value > highest:
        return f"would have the value {value}: pass Masks(..., dtype='int32')"
    if area is not None and not _are_numbers([area]):
        return f"must have a number as its area, got {shown(area)}"
    if isinstance(outline, dict):
        counts = outline.get("counts")
        is_code = isinstance(counts, str) or _are_numbers(counts, int)
        runs = _read_counts(counts) if is_code else []  # type: ignore[arg-type]
        if outline.get("size") != sides or sum(runs) != sides[0] * sides[1] or min(runs) < 0:
            return f"must have a run-length code of {sides}, got {shown(outline)}"
        return ""
    _import_pycocotools()
    for polygon in outline if isinstance(outline, list) and outline else [outline]:
        most = 10 * max(sides)  # limit of coordinates in pixels
        if (
            not _are_numbers(polygon)
            or len(polygon) < 6
            or len(polygon) % 2
            or not all(abs(each) < most for each in polygon)
        ):
            return f"must have polygons x, y, x, y, ... in its image, got {shown(polygon)}"
    return ""


def _measure(outline: Json | list[list[float]]) -> float:
    """Return the area of a segmentation in pixels, for an annotation without an area."""
    if isinstance(outline, dict):
        return sum(_read_counts(outline["counts"])[1::2])
    corners = [np.reshape(polygon, (-1, 2)).T for polygon in outline]
    return sum(float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2 for x, y in corners)


def _are_numbers(values: object, *kinds: type) -> TypeGuard[list[Any]]:
    """Return whether `values` is a list of numbers; bools are not numbers."""
    return isinstance(values, list) and set(map(type, values)) <= set(kinds or (int, float))


def _read_counts(counts: str | bytes | list[int]) -> list[int]:
    """Return lengths of runs; text contains groups of 5 bits: from the third length on, differences to two before.

    Not pycocotools' decode, which gives warnings with numpy 2.
    """
    if isinstance(counts, list):
        return counts
    runs: list[int] = []
    value = shift = 0
    for char in counts.encode() if isinstance(counts, str) else counts:
        group = char - 48
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            value -= (1 << shift) if group & 16 else 0
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return runs


def _import_pycocotools() -> ModuleType:
    try:
        from pycocotools import mask
    except ImportError as error:
        cause = f"COCO polygons need pycocotools ({error})"
        raise LoaderError("E-DEPENDENCY", cause, fix="pip install pycocotools") from error
    return mask  # type: ignore[no-any-return]
