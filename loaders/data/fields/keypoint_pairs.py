"""Finds left and right keypoints by their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.spec import ImagePipeline

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SIDES = {"left": 0, "l": 0, "right": 1, "r": 1}
Parted = tuple[tuple[int, ...], tuple[str, ...]]  # the sides in a name, and its words with "" in place of the sides
_JOINED = re.compile(r"(left|right)(.+)|(.+?)(left|right)")  # "lefteye", "eyeleft"


def find_pairs(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the numbers of left and right of each pair, in the order of the left ones.

    A side is a word anywhere in a name, in upper or lower case: left_eye, LeftEye, eye.L, l-eye. The rest of both names
    must be equal except for case, and no third keypoint may have the same rest and side. In names with several sides,
    all are exchanged: left_eye_right_corner and right_eye_left_corner.
    """
    numbers_of: dict[Parted, list[int]] = defaultdict(list)
    for number, name in enumerate(names):
        if (found := _find_sides(name)) is not None:
            numbers_of[found].append(number)
    pairs = []
    for (sides, rest), numbers in numbers_of.items():
        others = numbers_of.get((tuple(1 - side for side in sides), rest), [])
        if sides[0] == 0 and len(numbers) == len(others) == 1:
            pairs.append((numbers[0], others[0]))
    return tuple(pairs)


def has_lonely(names: Sequence[str], pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether some keypoints have a side, or appear to have one, but are in none of `pairs`.

    Examples are left_ankle and right_ankel, LHIP and RHIP, and two pairs with the same names.
    """
    paired = {number for pair in pairs for number in pair}
    alone = [name for number, name in enumerate(names) if number not in paired]
    letters: dict[tuple[str, str], set[str]] = defaultdict(set)  # rest of a name -> first or last letters
    for name in map(str.lower, alone):
        letters["", name[1:]].add(name[:1])
        letters[name[:-1], ""].add(name[-1:])
    return any(map(_find_sides, alone)) or any(each >= {"l", "r"} for each in letters.values())


def _find_sides(name: str) -> Parted | None:
    """Return the sides of a name (0: left) and its other words; None for a name without a side."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not any(word in _SIDES for word in words):
        parted = [(found.groups() if (found := _JOINED.fullmatch(word)) else [word]) for word in words]
        words = [part for parts in parted for part in parts if part]
    sides = tuple(_SIDES[word] for word in words if word in _SIDES)
    return (sides, tuple("" if word in _SIDES else word for word in words)) if sides else None


def warn_of_unpaired(kinds: Mapping[str, FieldKind], views: Sequence[ImagePipeline]) -> None:
    """Warn if a pipeline mirrors images and left and right are unknown for all or some keypoints."""
    unpaired = [name for name, kind in kinds.items() if kind.unpaired and kind.points > 1]
    if unpaired and any(view.flip or view.vertical_flip or view.crop == "ten" for view in views):
        warn_user(
            f"the pipeline mirrors images (flip), but the left and right points of {', '.join(unpaired)} are not known "
            "or not all known: pass swaps=[(left, right), ...], or swaps=() if no point has a side"
        )
