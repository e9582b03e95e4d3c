"""Sample: one sample of a source as it is stored, without crop and augmentation."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import ONE_CLASS, Source, has_fields, has_targets, sample_name
from penstock.loaders.data.sources.source_faults import call_source, name_sample, naming_method
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.masks import decode_mask
from penstock.pipelines.fields.placement import corners_of
from penstock.pipelines.fields.ragged import Ragged
from penstock.pipelines.image_types import Levels
from penstock.pipelines.sample.decode import ImageDecoder
from penstock.pipelines.sample.decode_bands import is_only_bands
from penstock.pipelines.sample.formats import has_16_bits
from penstock.pipelines.sample.target_decoder import TargetDecoder
from penstock.pipelines.spec import ImagePipeline
from penstock.pipelines.targets import Targets


@dataclass(frozen=True)
class Sample:
    """One sample as it is stored: `source[i]`. It unpacks as (image, label).

    Attributes:
        image: uint8 [height, width, 3], RGB. The EXIF orientation is not applied. Images of 16 bits, floats and images
            of other channels than grey and colour keep their type and channels.
        label: the class number, a float, an array, or a dict of these by name.
        class_name: the name of the class; None for other labels, and for data without labels.
        fields: masks [height, width], image targets [height, width, channels] without normalising, boxes float32
            [k, 4] and their classes int64 [k], keypoints, numbers and texts by name, as in batches, in pixels of the
            image.
        name: the name of the sample in its source.
        index: its position in the source.
    """

    image: npt.NDArray[Any]
    label: Any
    class_name: str | None
    fields: dict[str, Any]
    name: str
    index: int

    def __iter__(self) -> Iterator[Any]:
        return iter((self.image, self.label))


class BySample:
    """Gives a source its samples by number: `source[i]`, from -len(source) to len(source) - 1, as in a sequence."""

    def __getitem__(self, index: int) -> Sample:
        return read_sample(self, index)  # type: ignore[arg-type]


def out_of_range(index: int, count: int) -> IndexError:
    """Return the error for the number of a sample that a source of `count` samples does not have."""
    numbers = f"from 0 to {count - 1:,}" if count > 1 else "0 only" if count else "not at all, because there are none"
    return IndexError(f"no sample {index:,}: the samples are numbered {numbers}")


def read_sample(source: Source, index: int) -> Sample:
    """Return sample `index` of a source; negative numbers count from the end.

    Raises IndexError out of range, TypeError for other values than integers, and the LoaderError of the sample.
    """
    try:
        number = operator.index(index)
    except TypeError:
        part = "open_source(..., subset=':100') chooses a part"
        raise TypeError(f"samples are numbered by integers, got {type(index).__name__}: {part}") from None
    if not -len(source) <= number < len(source):
        raise out_of_range(number, len(source))
    number %= len(source)
    try:
        data = call_source(source.read, number)
        image = np.array(data) if isinstance(data, np.ndarray) else _decode(data)
        label, class_name = _label_of(source, number)
        fields = _fields_of(source, number, image.shape[:2])
    except LoaderError as error:
        raise error.locate(sample=number, path=name_sample(source, number)) from error.__cause__
    return Sample(image, label, class_name, fields, os.fsdecode(sample_name(source, number)), number)


def _decode(data: bytes) -> Levels:
    decoder = ImageDecoder(ImagePipeline())
    if not is_only_bands(data):
        try:
            info = decoder.probe(data)
            if not has_16_bits(data, info.format):
                return decoder.full(data, info).copy()
        except LoaderError as error:
            if error.code != "E-UNSUPPORTED":  # such as channels that this pipeline does not have
                raise
    return decoder.bands(data).decode()


def _label_of(source: Source, number: int) -> tuple[Any, str | None]:
    """Return the label, and the name of its class."""
    one = np.array([number], np.int64)
    if has_targets(source):
        with naming_method("targets()"):
            return _first(source.targets(one)), None
    with naming_method("labels()"):
        label = int(source.labels(one)[0])
    has_name = label < len(source.classes) and tuple(source.classes) != (ONE_CLASS,)
    return label, os.fsdecode(source.classes[label]) if has_name else None


def _first(targets: Targets) -> Any:
    if isinstance(targets, dict):
        return {name: _first(part) for name, part in targets.items()}
    return targets[0] if targets.ndim > 1 else targets[0].item()


def _fields_of(source: Source, number: int, shape: tuple[int, int]) -> dict[str, Any]:
    """Return the fields of a sample whose image has the shape (height, width)."""
    if not has_fields(source):
        return {}
    with naming_method("fields()"):
        values = source.fields(np.array([number], np.int64))
    found: dict[str, Any] = {}
    for name, kind in source.field_kinds.items():
        if kind.kind == "mask":
            found[name] = decode_mask(call_source(source.mask, name, number))
        elif kind.kind == "image":
            target = TargetDecoder(kind, ImagePipeline()).open(call_source(source.mask, name, number))
            found[name] = np.array(target.crop((0, 0, target.width, target.height)))
        elif kind.kind == "boxes":
            boxes = values[name]
            size = np.array([shape[::-1]], np.int32)
            found[name] = corners_of(boxes, kind, size).astype(np.float32)
            found[f"{name}_classes"] = boxes.parts[1].astype(np.int64) + kind.first_class
        elif isinstance(values[name], Ragged):
            found[name] = values[name].parts[0]
        else:
            value = values[name][0]
            found[name] = value.item() if isinstance(value, np.generic) else value
    return found
