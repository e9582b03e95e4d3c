"""The kinds of fields that a sample may have next to its image."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.pipelines.messages.checked import checked_choice, set_checked

# Ultralytics' training drops boxes below this share after its crops. By default, torchvision and albumentations keep
# any sliver, but a model cannot learn a class from a sliver.
MIN_AREA = 0.1
Elements = tuple[tuple[str, tuple[int, ...]], ...]


class KindRules(NamedTuple):
    """Properties of all fields of one kind.

    Attributes:
        moves: whether they follow the image's crop, turn and flip.
        elements: dtype and shape of the arrays stored per element, or per sample; the last of several is optional.
        empty: value served in rows without a sample.
        encode, decode: for lists of objects, the conversions of an object to the stored bytes and back.
    """

    moves: bool = False
    elements: Elements = (("u1", ()),)
    empty: Any = None
    encode: Callable[[Any], bytes] | None = None
    decode: Callable[[bytes], Any] = bytes


RULES = {
    "mask": KindRules(moves=True, elements=()),
    "image": KindRules(moves=True, elements=()),
    "boxes": KindRules(moves=True, elements=(("<f4", (4,)), ("<i8", ()), ("<i4", (2,)))),  # class, size of the image
    "keypoints": KindRules(moves=True),
    "integer": KindRules(elements=(("<i8", ()),), empty=-1),
    "text": KindRules(
        empty="",
        encode=lambda text: text.encode("utf-8", "surrogateescape"),
        decode=lambda data: data.decode("utf-8", "surrogateescape"),
    ),
    "bytes": KindRules(empty=b"", encode=bytes),
    "json": KindRules(encode=lambda value: json.dumps(value).encode(), decode=json.loads),
}


HIGHEST = {"uint8": 255, "uint16": 65535}  # the highest level of image targets, by type
PICTURES = {"mask": "mask", "image": "target"}  # kinds with a file or array per sample, and their name in messages


@dataclass(frozen=True, kw_only=True)
class TargetRules:
    """How an image target is made and served.

    Attributes:
        channels: number of its channels.
        scale: its sides as a multiple of the image's.
        interpolation: filter of its resize, one of INTERPOLATIONS.
        fill: level of pixels outside the image, one per channel.
        mean, std: served is `(level - mean) / std`, one number per channel; () for the levels themselves.
        missing: the level of pixels without a value, which are not mixed with others; None if all have one.
    """

    channels: int
    scale: int
    interpolation: str
    fill: tuple[float, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    missing: float | None = field(default=None, repr=False)  # as category_ids of FieldKind

    def __post_init__(self) -> None:
        if self.missing is not None and self.missing != self.missing:
            set_checked(self, missing=math.nan)
        # All NaNs become one object, because equal tuples have equal or identical elements.
        set_checked(self, fill=tuple(math.nan if level != level else level for level in self.fill))


@dataclass(frozen=True, kw_only=True)
class FieldKind:
    """A field of a source, and how it is served.

    Attributes:
        kind: one of RULES.
        classes: for boxes, the names of their classes, from number `first_class` on.
        min_area: for boxes, the smallest share of its area that a box must keep in the crop; others are dropped.
        relative: for boxes, whether they are stored as shares of the image's sides instead of pixels.
        of: for keypoints, the field of the boxes that they belong to, one set per box; "" for one set per sample.
        swaps: for keypoints, pairs that change places in a mirror image, such as left and right hand.
        points: for keypoints, their number in a set.
        padded: for boxes and keypoints, whether a batch has one padded tensor instead of a list of tensors.
        dtype: for masks, "uint8", "uint16" or "int32"; for image targets, "uint8", "uint16" or "float32".
        ignore_index: for masks, the value of pixels outside the image.
        first_class: for boxes, the number of the first class as served; a source counts from 0.
        unpaired: for keypoints, whether left and right are not declared: they may be exchanged in a mirrored image.
        category_ids: for boxes, the ids of their classes in the source file; empty for numbers from 0, None if joined
            files have different ids.
        target: for image targets, their other rules.
    """

    kind: str
    classes: tuple[bytes, ...] = ()
    min_area: float = MIN_AREA
    relative: bool = False
    of: str = ""
    swaps: tuple[tuple[int, int], ...] = ()
    points: int = 0
    padded: bool = False
    dtype: str = "uint8"
    ignore_index: int = 255
    # Not in the repr: the repr identifies data, and must not change for data without these fields.
    first_class: int = field(default=0, repr=False)
    category_ids: tuple[int | str | None, ...] = field(default=(), repr=False)
    unpaired: bool = field(default=False, repr=False, compare=False)  # older caches do not store it
    target: TargetRules | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        checked_choice("kind", self.kind, tuple(RULES))
        if (self.kind == "image") != (self.target is not None):
            raise ValueError(f"fields of kind image have a target, and no others, got {self}")

    @property
    def rules(self) -> KindRules:
        """Properties of all fields of this kind."""
        return RULES[self.kind]

    @property
    def is_ragged(self) -> bool:
        """Whether the number of elements varies between samples: boxes, keypoints of boxes, the bytes of a text."""
        return bool(self.of) if self.kind == "keypoints" else self.kind not in (*PICTURES, "integer")

    @property
    def is_picture(self) -> bool:
        """Whether each sample has a file or an array with a value per pixel: masks and image targets."""
        return self.kind in PICTURES

    @property
    def scale(self) -> int:
        """Sides of a mask or image target as a multiple of the image's."""
        return 1 if self.target is None else self.target.scale

    @property
    def channels(self) -> int:
        """Number of values per pixel of a mask or image target."""
        return 1 if self.target is None else self.target.channels

    @property
    def outside(self) -> int | tuple[float, ...]:
        """Value of a mask's or image target's pixels outside the image."""
        return self.ignore_index if self.target is None else self.target.fill

    @property
    def missing(self) -> float | None:
        """Level of an image target's pixels without a value; None if all have one."""
        return None if self.target is None else self.target.missing

    def picture_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of a mask or image target that belongs to an image of this size."""
        if self.target is None:
            return height, width
        return height * self.scale, width * self.scale, self.target.channels

    @property
    def elements(self) -> Elements:
        """Dtype and shape of each array stored per element, or per sample if the field is not ragged."""
        return (("<f4", (self.points, 3)),) if self.kind == "keypoints" else self.rules.elements


def of_kind(kinds: Mapping[str, FieldKind], kind: str, of: str = "") -> dict[str, FieldKind]:
    """Return the fields in `kinds` that are of one kind; for keypoints, only those that belong to the boxes `of`."""
    return {name: each for name, each in kinds.items() if (each.kind, each.of) == (kind, of)}


def pictures_of(kinds: Mapping[str, FieldKind]) -> dict[str, FieldKind]:
    """Return the fields in `kinds` that are masks or image targets."""
    return {name: each for name, each in kinds.items() if each.is_picture}
