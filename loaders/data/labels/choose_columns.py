"""Chooses a table's image and label columns; all formats share one list of known names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from penstock.loaders.data.files.left_out import IMAGE_SUFFIXES
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.stored_labels import ALONE
from penstock.loaders.data.samples.saved_texts import TEXT
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

# In search order, in upper or lower case. file_name is used in Hugging Face's metadata.csv.
IMAGE_COLUMNS: tuple[str, ...] = ("image", "path", "file", "file_name", "filename", "filepath", "img", "image_path")
IMAGE_COLUMNS += ("jpg", "jpeg", "png", "webp", "image_bytes", "bytes", "picture", "photo")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", "label_id", "class_id", "category", "y")
PATH_COLUMNS = frozenset({"path", "file", "file_name", "filename", "filepath", "image_path"})  # never images themselves
_RARE = ("labels", "fine_label", "cls", "label_id", "class_id")  # last in tables of paths
TEXT_COLUMNS = ("caption", "captions", "text", "texts", "title", "alt", "alt_text", "prompt", "description")
TABLE_LABELS = sorted(LABEL_COLUMNS, key=_RARE.__contains__)
Name = TypeVar("Name")  # name of a column: text, or another object in a data frame
_FLOAT = ":float"


def choose_columns(
    columns: Sequence[Name], image: object, label: object, where: str, labels: LabelRows | None = None
) -> tuple[Name, Name | dict[str, Name] | None]:
    """Return the names of the columns of image paths and of labels: None for no labels, a dict for several.

    columns: all names. image, label: the user's options; None for the first column with a known name. A list or dict of
    columns gives several labels; the column of `labels.text` is one of them, named TEXT. where: the table's name in
    messages. labels: receives the labels with ":float" after their columns. Raises ValueError. Warns if labels may
    have been overlooked.
    """
    paths, found = _choose_columns(columns, image, label, where, labels)
    if labels is None or labels.text.place is None:
        return paths, found
    text = _find_given("text", labels.text.place, columns, where)
    refuse_twins([text], columns)
    return paths, {**(found if isinstance(found, dict) else {} if found is None else {ALONE: found}), TEXT: text}


def _choose_columns(
    columns: Sequence[Name], image: object, label: object, where: str, labels: LabelRows | None
) -> tuple[Name, Name | dict[str, Name] | None]:
    label, floats = split_floats(label, columns)
    if labels is not None:
        labels.expect_floats(floats)
    paths = find_named(IMAGE_COLUMNS, columns) if image is None else _find_given("image", image, columns, where)
    if paths is None:
        columns_text = _suggest("image", IMAGE_COLUMNS, columns)
        raise ValueError(f"no column of {where} has a known name for images: {columns_text}")
    text = None if labels is None else labels.text.place
    others = [name for name in columns if name not in (paths, text)]
    several = name_columns(label)
    if several is not None:
        refuse_twins([paths, *several.values()], columns)
        return paths, {name: _find_given("label", column, columns, where) for name, column in several.items()}
    found = find_named(TABLE_LABELS, others) if label is None else _find_given("label", label, columns, where)
    if found is None and others and text is None:  # texts need no labels
        warn_user(
            f"no column of {where} has a known name for labels, so all images are in one class: "
            f"{_suggest('label', LABEL_COLUMNS, others, besides=paths)}"
        )
    refuse_twins([paths, found], columns)
    return paths, found


def _find_given(option: str, wanted: object, columns: Sequence[Name], where: str) -> Name:
    found = next((name for name in columns if name == wanted), None)
    if found is None:
        raise ValueError(f"{option}={wanted!r} is not a column of {where}: {_suggest(option, [str(wanted)], columns)}")
    return found


def find_named(known: Iterable[str], columns: Sequence[Name]) -> Name | None:
    """Return the column with the first of the `known` names, in upper or lower case; None if there is none."""
    by_name = {str(name).lower(): name for name in reversed(columns)}
    return next((by_name[name] for name in known if name in by_name), None)


def _suggest(option: str, wanted: Sequence[str], columns: Sequence[object], besides: object = None) -> str:
    """Return a text with the columns, and the one most similar to a wanted name.

    besides: the column of the images, if it is not among `columns`.
    """
    names = [str(name) for name in columns]
    mark = next((mark for mark in ";|\t" if len(names) == 1 and mark in names[0]), None)
    if mark is not None:
        return f"its first line is {printable(names[0])}: separate the columns by commas, not by {mark!r}"
    text = f"its columns are {', '.join(map(printable, names))}"
    if besides is not None:
        others = f"column{'s' * (len(names) > 1)} {', '.join(map(printable, names))}"
        text = f"besides {printable(str(besides))} it has the {others}"
        texts = find_named(TEXT_COLUMNS, names)
        if texts is not None:
            return f"{text}; pass {'label= with one of them, or ' * (len(names) > 1)}text={texts!r} for its texts"
    if any(os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES for name in names):
        return f"{text}; the first line of a table must be the names of its columns"
    lowered = {name.lower(): name for name in names}
    near = (difflib.get_close_matches(name.lower(), lowered, 1, cutoff=0.7) for name in wanted)
    close = [lowered[found[0]] for found in near if found]
    close += [lowered[name] for name in lowered for known in wanted if known in name and len(known) > 1]
    nearest = next(iter(close), names[0] if len(names) == 1 else None)
    return f"{text}; pass {option}={nearest!r}" if nearest is not None else f"{text}; name one with {option}="


def name_columns(label: object) -> dict[str, object] | None:
    """Return the columns of several labels by name; None if the option `label` is not a list or dict of columns."""
    if not isinstance(label, (list, tuple, Mapping)):
        return None
    named = dict(label) if isinstance(label, Mapping) else {str(column): column for column in label}
    if not named or not all(isinstance(name, str) and name for name in named) or len(named) < len(label):
        raise ValueError(f"label must be a column, or several with different names, got {shown(label)}")
    return named


def refuse_twins(chosen: Iterable[object], columns: Collection[object]) -> None:
    """Raise ValueError if several of a table's columns share one of the names `chosen`, which is ambiguous."""
    names = list(columns)
    twin = next((name for name in chosen if names.count(name) > 1), None)
    if twin is not None:
        raise ValueError(f"{names.count(twin)} columns of the table are named {shown(twin)}: rename all but one")


def split_floats(label: object, columns: Collection[object]) -> tuple[object, frozenset[str]]:
    """Return the option `label` without ":float" after columns, and the names of the labels that have it.

    columns: all column names; a column with ":float" in its own name is used as it is.
    """

    def is_float(column: Any) -> bool:
        return isinstance(column, str) and column.endswith(_FLOAT) and column not in columns

    def plain(column: Any) -> Any:
        return column[: -len(_FLOAT)] if is_float(column) else column

    if isinstance(label, Mapping):
        return {name: plain(column) for name, column in label.items()}, frozenset(
            name for name, column in label.items() if is_float(column)
        )
    if isinstance(label, (list, tuple)):
        return [plain(column) for column in label], frozenset(plain(column) for column in label if is_float(column))
    return plain(label), frozenset({ALONE} if is_float(label) else ())
