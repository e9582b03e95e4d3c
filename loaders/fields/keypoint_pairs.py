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
    """Warn where a pipeline mirrors images, and nothing says which of their keypoints are left and right."""
    unpaired = [name for name, kind in kinds.items() if kind.unpaired and kind.points > 1]
    if unpaired and any(view.flip or view.vertical_flip or view.crop == "ten" for view in views):
        warn_user(
            f"the pipeline mirrors images (flip), and no pair of left and right is known among {', '.join(unpaired)}: "
            "pass swaps=[(left, right), ...], or swaps=() if no point has a side"
        )
