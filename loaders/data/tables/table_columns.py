"""Chooses the columns of a table that hold image paths and labels."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Sequence
from typing import Any

from penstock.loaders.data.files.left_out import IMAGE_SUFFIXES
from penstock.loaders.data.labels.label_rows import LabelRows, name_columns, refuse_twins, split_floats
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.user_warnings import warn_user

# In the order in which they are looked for, in any case. file_name is that of Hugging Face's metadata.csv.
IMAGE_COLUMNS = ("image", "path", "file", "file_name", "filename", "filepath", "img", "image_path")
LABEL_COLUMNS = ("label", "class", "target", "category", "y")


def choose_columns(
    columns: Sequence[Any], image: Any, label: Any, where: str, labels: LabelRows | None = None
) -> tuple[Any, Any]:
    """Return the names of the columns of image paths and of labels: None for no labels, a dict for several.

    columns: all names. image, label: what the user asked for; None for the first of IMAGE_COLUMNS and LABEL_COLUMNS. A
    list or dict of columns is of several labels. where: what messages call the table. labels: told which labels have
    ":float" behind their columns. Raises ValueError. Warns if labels may have been overlooked.
    """
    label, floats = split_floats(label, columns)
    if labels is not None:
        labels.expect_floats(floats)
    paths = _choose("image", image, IMAGE_COLUMNS, columns, where)
    if paths is None:
        raise ValueError(f"no column of {where} is known to hold images: {_suggest('image', IMAGE_COLUMNS, columns)}")
    others = [name for name in columns if name != paths]
    several = name_columns(label)
    if several is not None:
        refuse_twins([paths, *several.values()], columns)
        return paths, {name: _choose("label", column, (), columns, where) for name, column in several.items()}
    found = _choose("label", label, LABEL_COLUMNS, others if label is None else columns, where)
    if found is None and others:
        text = f"no column of {where} is known to hold labels, so its images are of one class"
        warn_user(f"{text}: {_suggest('label', LABEL_COLUMNS, others)}")
    refuse_twins([paths, found], columns)
    return paths, found


def find_label(columns: Collection[Any], image: Any) -> Any:
    """Return the column that is known to hold labels; None if there is none."""
    return _choose("label", None, LABEL_COLUMNS, [name for name in columns if name != image], "")


def _choose(option: str, wanted: Any, known: Sequence[str], columns: Sequence[Any], where: str) -> Any:
    if wanted is not None:
        if wanted in columns:
            return wanted
        raise ValueError(f"{option}={wanted!r} is not a column of {where}: {_suggest(option, [str(wanted)], columns)}")
    by_name = {str(name).lower(): name for name in reversed(columns)}
    return next((by_name[name] for name in known if name in by_name), None)


def _suggest(option: str, wanted: Sequence[str], columns: Sequence[Any]) -> str:
    """List the columns, and the one whose name is nearest to one that was wanted."""
    names = [str(name) for name in columns]
    mark = next((mark for mark in ";|\t" if len(names) == 1 and mark in names[0]), None)
    if mark is not None:
        return f"its first line is {printable(names[0])}: separate the columns by commas, not by {mark!r}"
    text = f"its columns are {', '.join(map(printable, names))}"
    if any(os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES for name in names):
        return f"{text}; the first line of a table must be the names of its columns"
    lowered = {name.lower(): name for name in names}
    near = (difflib.get_close_matches(name.lower(), lowered, 1, cutoff=0.7) for name in wanted)
    close = [lowered[found[0]] for found in near if found]
    close += [lowered[name] for name in lowered for known in wanted if known in name and len(known) > 1]
    nearest = next(iter(close), names[0] if len(names) == 1 else None)
    return f"{text}; pass {option}={nearest!r}" if nearest is not None else f"{text}; name one with {option}="
