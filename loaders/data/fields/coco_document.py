"""Reads a COCO or LVIS JSON file, refuses inconsistent content, and finds the image of each sample."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.picture_files import sample_names, whole_names
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import LoaderError, count_text, printable
from penstock.pipelines.messages.checked import checked_path, shown
from penstock.pipelines.messages.user_warnings import warn_user

FilePath = str | os.PathLike[str]
Json = dict[str, Any]  # an object of the file, with unchecked values
_MOST_SIDE = 2**31 - 1
_MOST_ID = 2**63 - 1
_MARKS = (0, 1, None)  # values of iscrowd; LVIS has none


class CocoDocument(NamedTuple):
    """The lists of a COCO JSON file.

    Attributes:
        path: path of the file, for messages.
        names: file_name of each image, or the path of its coco_url.
        image_ids: id of each image, an integer or text.
        sizes: int32 [images, 2], width and height of each image; 0 if the file does not have them.
        categories: the categories, sorted by id.
        annotations: the annotations, one object each.
        image_of: int64 [annotations], number of the annotation's image.
        class_of: int64 [annotations], number of the annotation's category.
        is_crowd: bool [annotations], whether the annotation is a crowd.
    """

    path: FilePath
    names: list[str]
    image_ids: list[int | str]
    sizes: npt.NDArray[np.int32]
    categories: list[Json]
    annotations: list[Json]
    image_of: npt.NDArray[np.int64]
    class_of: npt.NDArray[np.int64]
    is_crowd: npt.NDArray[np.bool_]

    def which(self, annotation: int) -> str:
        """Return an annotation's name in messages."""
        return f"annotation {self.annotations[annotation].get('id')} of image {self.image_id(annotation)}"

    def image_id(self, annotation: int) -> int | str:
        """Return the id of the image of an annotation."""
        return self.image_ids[int(self.image_of[annotation])]


def read_document(path: FilePath) -> CocoDocument:
    """Return the content of a COCO or LVIS JSON file.

    Raises ValueError for another file, for ids and names that are not unique, and for annotations of images or
    categories that the file does not have; LoaderError E-MISSING, E-ACCESS, E-READ.
    """
    checked_path("coco", path)
    try:
        return _read_document(path)
    except ValueError as error:
        raise file_error(path, str(error)) from None


def _read_document(path: FilePath) -> CocoDocument:
    images, categories, annotations = _read_lists(path)
    image_ids = _read_ids("image", images)
    names = [_name_of(number, each) for number, each in enumerate(images)]
    _refuse_repeated(image_ids, lambda a, b: f"images {shown(names[a])} and {shown(names[b])} have the id")
    _refuse_repeated(names, lambda a, b: f"images {image_ids[a]} and {image_ids[b]} have the file_name")
    category_ids = _read_ids("category", categories)
    called = [str(each.get("name", own)) for each, own in zip(categories, category_ids, strict=True)]
    _refuse_repeated(category_ids, lambda a, b: f"categories {shown(called[a])} and {shown(called[b])} have the id")
    order = sorted(
        range(len(categories)), key=lambda number: (isinstance(category_ids[number], str), category_ids[number])
    )
    image_of = _look_up(annotations, "image_id", image_ids)
    number_of = np.argsort(np.array(order, np.int64))
    class_of = number_of[_look_up(annotations, "category_id", category_ids)]
    sizes = np.array([_size_of(each) for each in images], np.int32).reshape(-1, 2)
    return CocoDocument(
        path,
        names,
        image_ids,
        sizes,
        [{**categories[number], "id": category_ids[number], "name": called[number]} for number in order],
        annotations,
        image_of,
        class_of,
        _read_crowds(annotations),
    )


def file_error(path: FilePath, why: str) -> ValueError:
    """Return the error for an invalid file."""
    return ValueError(f"{printable(str(path))}: {why}")


def _read_lists(path: FilePath) -> list[list[Json]]:
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except OSError as error:
        found = read_error(error, os.fsencode(path))
        raise LoaderError(found.code, found.cause, fix="pass a JSON file of COCO instances", path=found.path) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON file of COCO instances ({error})") from None
    lists = []
    for name in ("images", "categories", "annotations"):
        listed = document.get(name) if isinstance(document, dict) else None
        if not isinstance(listed, list) or not set(map(type, listed)) <= {dict}:
            raise ValueError(f"not a JSON file of COCO instances (it has no list of objects called {name})")
        lists.append(listed)
    return lists


def _read_ids(what: str, listed: Sequence[Json]) -> list[int | str]:
    found = []
    for number, each in enumerate(listed):
        own = _as_id(each.get("id"))
        if own is None:
            raise ValueError(f"{what} number {number} must have an id, an integer or text, got {shown(each.get('id'))}")
        found.append(own)
    return found


def _as_id(value: object) -> int | str | None:
    """Return an id as a 64-bit integer or text; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_ID:
        return value
    return value if isinstance(value, str) else None


def _name_of(number: int, image: Json) -> str:
    """Return the file name of an image; LVIS has a URL instead."""
    name, url = image.get("file_name"), image.get("coco_url")
    if isinstance(name, str) and name:
        return name
    if name is None and isinstance(url, str) and (found := unquote(urlsplit(url).path).lstrip("/")):
        return found
    raise ValueError(f"image {shown(image.get('id', number))} must have a file_name or a coco_url, got {shown(name)}")


def _size_of(image: Json) -> tuple[int, int]:
    sides = image.get("width"), image.get("height")
    if sides == (None, None):
        return 0, 0
    if not all(isinstance(side, (int, float)) and side % 1 == 0 and 0 < side <= _MOST_SIDE for side in sides):
        wanted = "width and height in pixels, or neither"
        raise ValueError(f"image {shown(image['id'])} must have {wanted}, got {shown(sides[0])} and {shown(sides[1])}")
    return int(image["width"]), int(image["height"])


def _read_crowds(annotations: Sequence[Json]) -> npt.NDArray[np.bool_]:
    """Return which annotations are crowds. Raises ValueError for a value that is not 0 or 1: text would be true."""
    marks = [each.get("iscrowd") for each in annotations]
    for number, mark in enumerate(marks if any(mark not in _MARKS for mark in marks) else ()):
        if mark not in _MARKS:
            which = f"annotation {annotations[number].get('id')} of image {annotations[number]['image_id']}"
            raise ValueError(f"{which} must have iscrowd of 0 or 1, got {shown(mark)}")
    return np.array(marks, bool)


def find_objects(document: CocoDocument) -> npt.NDArray[np.intp]:
    """Return the numbers of the annotations that are not crowds. Warns if all are: some tools export masks so."""
    found = np.flatnonzero(~document.is_crowd)
    if len(document.annotations) and not len(found):
        warn_user(
            f"{printable(str(document.path))}: all {len(document.annotations):,} annotations have iscrowd 1, and "
            "crowds are left out: set iscrowd to 0 for single objects"
        )
    return found


def _refuse_repeated(values: Sequence[int | str], describe: Callable[[int, int], str]) -> None:
    """Raise ValueError with a description of the first two equal values."""
    if len(set(values)) == len(values):
        return
    first: dict[int | str, int] = {}
    for number, value in enumerate(values):
        if value in first:
            raise ValueError(f"{describe(first[value], number)} {shown(value)}: they must differ")
        first[value] = number


def _look_up(annotations: Sequence[Json], key: str, ids: Sequence[int | str]) -> npt.NDArray[np.int64]:
    """Return the number in `ids` of each annotation's `key`. Raises ValueError for unknown ids, with their count."""
    number_of: dict[object, int] = {each: number for number, each in enumerate(ids)}
    try:
        given = map(itemgetter(key), annotations)
        found = np.fromiter(map(number_of.get, given, repeat(-1)), np.int64, len(annotations))
    except (KeyError, TypeError):  # missing, a list or an object
        found = np.array([number_of.get(_as_id(each.get(key)), -1) for each in annotations], np.int64)
    wrong = np.flatnonzero(found < 0)
    if not len(wrong):
        return found
    first = annotations[wrong[0]]
    what = f"the {key} {shown(first[key])} is not an id of the file" if key in first else f"it has no {key}"
    of_image = f" of image {shown(first.get('image_id'))}" if key != "image_id" else ""
    more = f" (and {len(wrong) - 1:,} more annotations)" if len(wrong) > 1 else ""
    listed = "images" if key == "image_id" else "categories"
    why = f"annotation {first.get('id')}{of_image}: {what}{more}: add it to {listed}, or remove the annotation"
    raise ValueError(why)


def find_images(source: Source, document: CocoDocument) -> npt.NDArray[np.int64]:
    """Return the number of each sample's image: found by its name, or else by the last part of the name if unique.

    No two samples share an image, including samples that a part of the data leaves out. Raises ValueError for a sample
    without an image; warns of images without a sample.
    """
    whole = {name: number for number, name in enumerate(document.names)}
    last: dict[str, int] = {}
    for name, number in whole.items():
        base = os.path.basename(name.replace("\\", "/"))  # as written by tools on Windows
        last[base] = -1 if base in last else number

    def find(name: str) -> int | None:
        return whole.get(name, last.get(os.path.basename(name)))

    sample_of: dict[int, int] = {}
    names = list(sample_names(source))
    for index, name in enumerate(names):
        found = find(name)
        if found is None or found < 0:
            what = "is not in the file" if found is None else "matches the last part of several names in the file"
            has = f"which has {count_text(len(whole), 'image')}: its image needs the sample's name as file_name"
            raise file_error(document.path, f"sample {index} ({printable(name)}) {what}, {has}")
        if (other := sample_of.setdefault(found, index)) != index:
            _refuse_two(document, found, " and ".join(_call_sample(source, number) for number in (other, index)))
    by_last = {number: index for number, index in sample_of.items() if names[index] not in whole}
    asks_whole = bool(by_last) or len(names) < len(whole)
    claims = Counter(find(name) for name in whole_names(source) if asks_whole)
    for number, index in by_last.items():
        if claims[number] > 1:
            _refuse_two(document, number, f"{_call_sample(source, index)} and one of the whole data")
    others = [name for name, number in whole.items() if number not in claims] if len(names) < len(whole) else []
    if others:
        left = f"{len(others):,} of {count_text(len(whole), 'image')}"
        warn_user(
            f"{printable(str(document.path))}: {left} are not in this data and are left out, first {shown(others[0])}"
        )
    return np.fromiter(sample_of, np.int64, len(sample_of))


def _call_sample(source: Source, index: int) -> str:
    return f"{index} ({printable(source.path(index))})"


def _refuse_two(document: CocoDocument, image: int, samples: str) -> NoReturn:
    name = shown(document.names[image])
    wanted = "add an image for each, with the sample's whole name as file_name"
    raise file_error(document.path, f"samples {samples} would both be image {name}: {wanted}")
