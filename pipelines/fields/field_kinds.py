"""The kinds of fields that a sample may have next to its image."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.pipelines.messages.checked import checked_choice

# Ultralytics' training drops boxes below this share after its crops. torchvision and albumentations keep any sliver
# unless told otherwise, and a model cannot learn a class from a sliver.
MIN_AREA = 0.1
Elements = tuple[tuple[str, tuple[int, ...]], ...]


class KindRules(NamedTuple):
    """Say what all fields of a kind have in common.

    Attributes:
        moves: whether they follow the image's crop, turn and flip.
        elements: dtype and shape of what is kept of each element, or of each sample; the last of several may lack.
        empty: what is served in rows without a sample.
        encode, decode: of lists of objects, how each becomes the bytes that are kept, and is made of them.
    """

    moves: bool = False
    elements: Elements = (("u1", ()),)
    empty: Any = None
    encode: Callable[[Any], bytes] | None = None
    decode: Callable[[bytes], Any] = bytes


RULES = {
    "mask": KindRules(moves=True, elements=()),
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


@dataclass(frozen=True, kw_only=True)
class FieldKind:
    """Say what a field of a source is, and how it is served.

    Attributes:
        kind: one of RULES.
        classes: of boxes, what their class numbers are called, from `first_class` on.
        min_area: of boxes, those that keep a smaller share of their area in the crop are dropped.
        relative: of boxes, whether they are stored as shares of the image's sides, not as pixels.
        of: of keypoints, the field of boxes that they belong to, one set per box; "" for one set per sample.
        swaps: of keypoints, pairs that change places in a mirror, such as left and right hand.
        points: of keypoints, how many a set has.
        padded: of boxes and keypoints, whether a batch holds one padded tensor instead of a list of tensors.
        dtype: of masks, "uint8", "uint16" or "int32".
        ignore_index: of masks, the value of pixels outside the image.
        first_class: of boxes, the number of the first class as it is served; a source counts from 0.
        unpaired: of keypoints, whether nobody said which are left and right: a mirrored image may have them exchanged.
        category_ids: of boxes, the ids of their classes in the file that they come from; empty for numbers from 0,
            None for those of joined files that differ.
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
    # Not in the repr: it identifies data, and data without these stays the same.
    first_class: int = field(default=0, repr=False)
    category_ids: tuple[int | str | None, ...] = field(default=(), repr=False)
    unpaired: bool = field(default=False, repr=False, compare=False)  # caches of before do not say it

    def __post_init__(self) -> None:
        checked_choice("kind", self.kind, tuple(RULES))

    @property
    def rules(self) -> KindRules:
        """What all fields of this kind have in common."""
        return RULES[self.kind]

    @property
    def is_ragged(self) -> bool:
        """Whether samples have any number of elements: boxes, keypoints of boxes, the bytes of a text."""
        return bool(self.of) if self.kind == "keypoints" else self.kind not in ("mask", "integer")

    @property
    def elements(self) -> Elements:
        """What is kept of each element, or of each sample if it is not ragged: dtype and shape of each array."""
        return (("<f4", (self.points, 3)),) if self.kind == "keypoints" else self.rules.elements


def of_kind(kinds: Mapping[str, FieldKind], kind: str, of: str = "") -> dict[str, FieldKind]:
    """Return those of the fields `kinds` that are of one kind; of keypoints those that belong to the boxes `of`."""
    return {name: each for name, each in kinds.items() if (each.kind, each.of) == (kind, of)}
