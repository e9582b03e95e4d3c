"""The values that users pass for fields: Masks, ImageTargets, Boxes, Keypoints, Coco, Yolo, or lists of objects."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.loaders.data.fields.box_values import check_boxes, check_keypoints
from penstock.loaders.data.fields.coco import read_coco
from penstock.loaders.data.fields.coco_document import FilePath
from penstock.loaders.data.fields.coco_masks import CocoMasks
from penstock.loaders.data.fields.image_targets import ImageTargets, target_field
from penstock.loaders.data.fields.join import find_partners
from penstock.loaders.data.fields.picture_files import (
    find_pictures,
    warn_of_ignored_foreground,
)
from penstock.loaders.data.fields.yolo import TextFiles, read_yolo
from penstock.loaders.data.labels.class_names import IN_BOXES, warn_of_classes
from penstock.loaders.data.samples.columns import ArrayColumn, BytesColumn, RaggedColumn
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data, as_data
from penstock.loaders.data.sources.source_faults import call_by_name
from penstock.loaders.data.sources.step import Field, Step
from penstock.loaders.system.file_read import decode_text
from penstock.pipelines.errors import count_text, printable
from penstock.pipelines.fields.field_kinds import MIN_AREA, RULES, FieldKind
from penstock.pipelines.messages.checked import (
    checked_bool,
    checked_choice,
    checked_int,
    checked_number,
    set_checked,
    shown,
)
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.sample.target_decoder import is_image_file

_MASK_TYPES = {"uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}
_MOST_CLASS = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAKEN = ("images", "labels", "index", "patches", "patch_coord", "patch_valid")  # names used in batches


def add_fields(source: Source, of: Mapping[str, Field]) -> Data:
    """Return `source` with additional fields, which replace fields of the same name."""
    digest = hashlib.blake2b(b"penstock fields 1", digest_size=16)
    for name, (kind, column) in sorted(of.items()):
        digest.update(repr((name, kind)).encode() + column.digest())
        if kind.first_class:
            digest.update(f"classes from {kind.first_class}".encode())
        if kind.target is not None:
            digest.update(repr(kind.target).encode())
            if kind.missing is not None:
                digest.update(f"missing {kind.missing}".encode())
    return as_data(source).add(Step(f"with fields {digest.hexdigest()}", after=f", with {', '.join(of)}", fields=of))


@dataclass(frozen=True)
class Masks:
    """The masks of images; each is cropped, resized by nearest neighbour, rotated and flipped with its image.

    Served as [batch, height, width] of `dtype`. Raises ValueError for an unknown `dtype` or `of`, and for an
    ignore_index that does not fit `dtype`.

    Attributes:
        where: a folder, in which each mask has the name of its image, with any suffix; a pattern such as
            "masks/{name}_seg.png", where {name} is the image's name without suffix; a function of the image's name that
            returns a path; a list of paths; integers [n, height, width]; open_source(...) of masks that are images,
            such as open_source("train.tar", image="seg.png"); or a COCO JSON file, "instances.json": its segmentations
            (polygons, run-length codes) are drawn by pycocotools (the extra `coco`).
        of: for a JSON file, "classes" for class numbers plus 1 (0: background), with smaller objects over larger ones
            and including crowds; "instances" for the number of each object in its image, from 1, without crowds.
        ignore_index: value of pixels outside the image.
        dtype: "uint8", or "int32" for more than 256 values, such as 16-bit PNGs.
    """

    where: Any
    ignore_index: int = 255
    dtype: str = "uint8"
    of: str = "classes"

    def __post_init__(self) -> None:
        checked_choice("dtype of masks", self.dtype, tuple(_MASK_TYPES))
        checked_choice("of= of masks", self.of, ("classes", "instances"))
        limits = _MASK_TYPES[self.dtype]
        set_checked(self, ignore_index=checked_int(f"ignore_index of {self.dtype} masks", self.ignore_index, *limits))


class _Served:
    min_area: float
    padded: bool
    first_class: int

    def __post_init__(self) -> None:
        kind = type(self).__name__
        min_area = checked_number(f"min_area of {kind}", self.min_area, 0, 1)
        padded = checked_bool(f"padded of {kind}", self.padded)
        first_class = checked_int(f"first_class of {kind}", self.first_class, 0, _MOST_CLASS)
        set_checked(self, min_area=min_area, padded=padded, first_class=first_class)


@dataclass(frozen=True)
class Boxes(_Served):
    """The boxes of each image, left, top, right and bottom in pixels of the image, with their classes.

    Served as float32 [k, 4], one tensor per image, with their classes, int64 [k]. Raises ValueError unless min_area is
    from 0 to 1.

    Attributes:
        boxes: an array [k, 4] per image.
        classes: a list of k class numbers or class names per image; None for class 0.
        names: names of the class numbers, or the order that gives names their numbers.
        min_area: a box with a smaller share of its area in the crop is dropped.
        padded: serve tensors [batch, most, ...] and the number of boxes of each image, not a list of tensors.
        first_class: added to class numbers when they are served: 1 for models with 0 as background, such as
            torchvision's detectors. `Loader.categories` has the name of each number.
        sizes: width and height of each annotated image, integers [n, 2]; an image of another size is refused.
    """

    boxes: Sequence[object]
    classes: Sequence[Any] | None = None
    names: Sequence[str] | None = None
    min_area: float = MIN_AREA
    padded: bool = False
    first_class: int = 0
    sizes: object = None


@dataclass(frozen=True)
class Keypoints:
    """The keypoints of each image: an array [n, k, 3] of x, y and visibility, or [n, k, 2].

    Served as float32 [batch, k, 3], in pixels of the crop.

    Attributes:
        points: x and y in pixels of the image, from its edge: the centre of the first pixel is 0.5. Visibility 0 means
            that a point is unknown.
        swaps: pairs of points that a mirror image swaps, such as left and right hand; () for none.
    """

    points: object
    swaps: Sequence[tuple[int, int]] | None = None


@dataclass(frozen=True)
class Coco(_Served):
    """Boxes and classes of a COCO JSON file, and keypoints if it has any.

    Crowds are left out, as in torchvision's references. Class numbers follow the order of the category ids, from
    `first_class`; `Loader.categories` has the ids. 0.5 is added to keypoints, because COCO counts from the centre of
    the first pixel. Served like Boxes and Keypoints, with the id of each image in the file, `image_ids`: int64 [batch],
    -1 in rows without a sample; a list if ids are text.

    Images are found by file_name (for LVIS, by coco_url), or by its last part if unique. An image is refused if its
    width and height in the file differ from those that the pipeline sees.

    Attributes:
        path: path of the JSON file.
        min_area, padded, first_class: as in Boxes.
        swaps: pairs of keypoints, by number or name, that a mirror image swaps; by default those with names that differ
            only in the words left and right, or l and r, at any position. () for none.
    """

    path: FilePath
    min_area: float = MIN_AREA
    padded: bool = False
    first_class: int = 0
    swaps: Sequence[tuple[int | str, int | str]] | None = None


@dataclass(frozen=True)
class Yolo(_Served):
    """The boxes of a folder of YOLO text files: class, centre and sides as shares of the image, one per line.

    Served like Boxes.

    Attributes:
        folder: folder with a .txt file named after each image; an image without a file has no boxes.
        names: names of the class numbers: a list, or a dict of number -> name, as in data.yaml.
        min_area, padded, first_class: as in Boxes.
    """

    folder: FilePath
    names: Sequence[str] | Mapping[int, str] | None = None
    min_area: float = MIN_AREA
    padded: bool = False
    first_class: int = 0


_BY_NAME = {"mask": Masks, "boxes": Boxes, "keypoints": Keypoints, "coco": Coco, "yolo": Yolo}
_MEANT = {"masks": "mask", "bboxes": "boxes", "bbox": "boxes", "box": "boxes", "keypoint": "keypoints"}


def count_values(value: object) -> int | None:
    """Return the number of values of a field for with_fields; None for values found by name."""
    given = (
        value.where if isinstance(value, (Masks, ImageTargets)) else value.boxes if isinstance(value, Boxes) else value
    )
    given = given.points if isinstance(given, Keypoints) else given
    if isinstance(given, tuple) and len(given) == 2:  # boxes and classes
        given = given[0]
    is_named = isinstance(given, (str, bytes, os.PathLike, Source, Coco, Yolo, Mapping)) or callable(given)
    return len(given) if hasattr(given, "__len__") and not is_named else None


def field_source(source: Source, fields: Mapping[str, object]) -> Data:
    """Return `source` with fields, as with_fields accepts them. Raises ValueError."""
    found: dict[str, Field] = {}
    for name, value in fields.items():
        if name in _TAKEN:
            raise ValueError(f"a field must not be named {name}, which batches already have")
        try:
            made = _make_fields(source, name, value)
        except ValueError as error:
            raise ValueError(f"field {name!r}: {error}") from error
        for both in sorted(made.keys() & found.keys()):
            raise ValueError(f"two fields would be named {both}, one of them from {name}=: use another name for it")
        found |= made
    if not found:
        raise ValueError("with_fields needs at least one field, such as mask='masks'")
    return add_fields(source, found)


def _make_fields(source: Source, name: str, value: object) -> dict[str, Field]:
    spec = _as_spec(name, value)
    if isinstance(spec, Masks):
        field = _mask_field(source, spec)
        warn_of_ignored_foreground(name, field.column.read, len(source), spec.ignore_index)
        return {name: field}
    if isinstance(spec, ImageTargets):
        return {name: target_field(source, spec, name)}
    if isinstance(spec, Keypoints):
        points, swaps = check_keypoints(spec.points, () if spec.swaps is None else spec.swaps, len(source))
        kind = FieldKind(kind="keypoints", swaps=swaps, points=points.shape[1], unpaired=spec.swaps is None)
        return {name: Field(kind, ArrayColumn(points))}
    if isinstance(spec, (Boxes, Coco, Yolo)):
        served = partial(
            FieldKind, kind="boxes", min_area=spec.min_area, padded=spec.padded, first_class=spec.first_class
        )
        if isinstance(spec, Yolo):
            boxes, classes = read_yolo(source, spec.folder, spec.names)
            return {
                _called(name, "yolo"): Field(
                    served(classes=classes, relative=True), TextFiles(boxes, os.fspath(spec.folder))
                )
            }
        if isinstance(spec, Boxes):
            boxes, classes = check_boxes(spec.boxes, spec.classes, spec.names, len(source), spec.sizes)
            if spec.names is None:
                warn_of_classes(classes, name=name, cure=IN_BOXES, option="names")
            return {name: Field(served(classes=classes), RaggedColumn(boxes))}
        return read_coco(source, spec.path, spec.swaps, _called(name, "coco"), served)
    if name in _MEANT:
        raise ValueError(f"use {_MEANT[name]}= for a field that follows the crop; otherwise choose another name")
    return {name: _plain_field(source, name, spec)}


def _as_spec(name: str, value: Any) -> object:
    if isinstance(value, (*_BY_NAME.values(), ImageTargets)):
        return value
    if name not in _BY_NAME:
        return ImageTargets(value) if isinstance(value, Source) and _has_images(value) else value
    if name == "boxes" and isinstance(value, tuple) and len(value) == 2:
        return Boxes(*value)
    return _BY_NAME[name](value)


def _has_images(source: Source) -> bool:
    """Return whether the first sample of a source is an image, and not a text."""
    first = source.read(0) if len(source) else b""
    return not isinstance(first, bytes) or is_image_file(first)


def _called(name: str, reader: str) -> str:
    return "boxes" if name == reader else name


def _mask_field(source: Source, spec: Masks) -> Field:
    kind = FieldKind(kind="mask", dtype=spec.dtype, ignore_index=spec.ignore_index)
    where = spec.where.numpy(force=True) if hasattr(spec.where, "detach") else spec.where
    if isinstance(where, (str, os.PathLike)) and os.fspath(where).lower().endswith(".json"):
        return Field(kind, CocoMasks(source, where, spec.of, spec.dtype))
    if not isinstance(where, np.ndarray):
        return Field(kind, find_pictures(source, where))
    if where.ndim != 3 or where.dtype.kind not in "biu" or len(where) != len(source):
        what = f"{where.dtype} {list(where.shape)}"
        raise ValueError(f"masks must be integers [{len(source)}, height, width], one per sample, got {what}")
    low, high = _MASK_TYPES[spec.dtype]
    if where.size and (where.min() < low or where.max() > high):
        raise ValueError(
            f"values of {spec.dtype} masks must be from {low} to {high}, got {where.min()} to {where.max()}"
        )
    return Field(kind, ArrayColumn(where.astype(spec.dtype, copy=False)))


def _plain_field(source: Source, name: str, value: object) -> Field:
    """Return a field of strings, of bytes, or of objects that JSON can represent."""
    values = call_by_name(source, value) if callable(value) else value
    if isinstance(values, Source):
        numbers = find_partners(source, values, "text").tolist()
        values = [decode_text(bytes(values.read(number))) for number in numbers]
    values = values.tolist() if hasattr(values, "tolist") else values  # an array, or a column of a data frame
    if not isinstance(values, (list, tuple)) or len(values) != len(source):
        got = f"{len(values):,}" if isinstance(values, (list, tuple)) else shown(values)
        cure = "; pass ImageTargets(...) for images in a folder" if isinstance(values, (str, os.PathLike)) else ""
        raise ValueError(f"values must be one per sample ({len(source):,}), got {got}{cure}")
    _warn_of_missing(source, name, values)
    if name == "text":  # such as captions
        _warn_of_empty(source, values)
    kind = next(kind for kind, of_type in _PLAIN.items() if all(isinstance(each, of_type) for each in values))
    if kind == "text":
        _warn_of_other_text(source, name, values)
    return Field(FieldKind(kind=kind), BytesColumn([_encode(RULES[kind].encode, each) for each in values]))


def _warn_of_missing(source: Source, name: str, values: Sequence[object]) -> None:
    """Warn of None and NaN among texts, among numbers, or alone; among other objects they are ordinary values."""
    missing = [at for at, value in enumerate(values) if value is None or (isinstance(value, float) and value != value)]
    if missing and set(map(type, values)) - {type(None), float} in (set(), {str}, {int}):
        first = printable(source.path(missing[0]))
        warn_user(
            f"field {name!r}: {count_text(len(missing), 'sample')} of {len(values):,} have no value (None or NaN), "
            f"first {first}: these are served unchanged"
        )


def _warn_of_empty(source: Source, texts: Sequence[object]) -> None:
    """Warn of captions without words, and of lists without captions."""
    if {str} != set(map(type, texts)) != {list}:
        return
    plain = [text.strip() if isinstance(text, str) else text for text in texts]
    empty = [at for at, text in enumerate(plain) if not text]
    if empty:
        warn_user(
            f"{count_text(len(empty), 'sample')} of {len(texts):,} have no text, first "
            f"{printable(source.path(empty[0]))}: these are served unchanged"
        )


def _warn_of_other_text(source: Source, name: str, texts: Sequence[str]) -> None:
    """Warn of texts that are not UTF-8; their other bytes are single surrogates."""
    others = [index for index, text in enumerate(texts) if not text.isascii() and _SURROGATE.search(text)]
    if others:
        count, first = count_text(len(others), "text"), printable(source.path(others[0]))
        warn_user(
            f"field {name!r}: {count} of {len(texts):,} cannot be read as UTF-8, first at {first}: other bytes are "
            "served as single surrogates (errors='surrogateescape')"
        )


def _encode(encode: Any, value: object) -> bytes:
    try:
        return bytes(encode(value))
    except (TypeError, ValueError) as error:
        raise ValueError(f"values must be text, bytes, or JSON values, got {shown(value)} ({error})") from None


_PLAIN = {"text": str, "bytes": bytes, "json": object}
