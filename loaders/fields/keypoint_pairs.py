"""Finds which keypoints are the left and the right one of a pair, by what they are called."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.spec import ImagePipeline
from penstock.pipelines.user_warnings import warn_user

_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SIDES = {"left": 0, "l": 0, "right": 1, "r": 1}
_JOINED = re.compile(r"(left|right)(.+)|(.+?)(left|right)")  # "lefteye", "eyeleft"


def find_pairs(names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the numbers of left and right of each pair, in the order of the left ones.

    A name has its side as a word anywhere and in any case: left_eye, LeftEye, eye.L, l-eye. The rest of both names must
    be equal but for case, and no third keypoint may have it with the same side.
    """
    of_rest: dict[tuple[str, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, name in enumerate(names):
        found = _find_side(name)
        if found is not None:
            side, rest = found
            of_rest[rest][side].append(number)
    return tuple((left[0], right[0]) for left, right in of_rest.values() if len(left) == len(right) == 1)


def has_lonely(names: Sequence[str], pairs: Sequence[tuple[int, int]]) -> bool:
    """Return whether some keypoints have a side, or look so next to another one, and are in none of `pairs`.

    Such are left_ankle next to right_ankel, LHIP next to RHIP, and two pairs of one name.
    """
    paired = {number for pair in pairs for number in pair}
    alone = [name for number, name in enumerate(names) if number not in paired]
    letters: dict[tuple[str, str], set[str]] = defaultdict(set)  # of the rest of a name, what comes before and after it
    for name in map(str.lower, alone):
        letters["", name[1:]].add(name[:1])
        letters[name[:-1], ""].add(name[-1:])
    return any(map(_find_side, alone)) or any(each >= {"l", "r"} for each in letters.values())


def _find_side(name: str) -> tuple[int, tuple[str, ...]] | None:
    """Return the side (0: left) and the other words of a name; None for one without a side, or with two."""
    words = [word.lower() for word in _WORDS.findall(name)]
    places = [at for at, word in enumerate(words) if word in _SIDES]
    if len(places) == 1:
        (at,) = places
        return _SIDES[words[at]], (*words[:at], "", *words[at + 1 :])
    joined = [(at, found) for at, word in enumerate(words) if (found := _JOINED.fullmatch(word))]
    if places or len(joined) != 1:
        return None
    ((at, found),) = joined
    side, rest = (found[1], ("", found[2])) if found[1] else (found[4], (found[3], ""))
    return _SIDES[side], (*words[:at], *rest, *words[at + 1 :])


def warn_of_unpaired(kinds: Mapping[str, FieldKind], views: Sequence[ImagePipeline]) -> None:
    """Warn where a pipeline mirrors images, and nothing says which keypoints, or which of some, are left and right."""
    unpaired = [name for name, kind in kinds.items() if kind.unpaired and kind.points > 1]
    if unpaired and any(view.flip or view.vertical_flip or view.crop == "ten" for view in views):
        warn_user(
            f"the pipeline mirrors images (flip), and which points are left and right is not known of "
            f"{', '.join(unpaired)}, or not of all: pass swaps=[(left, right), ...], or swaps=() if no point has a side"
        )
