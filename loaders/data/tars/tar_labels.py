"""Finds the labels of samples in tars, and reads them as text."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from penstock.loaders.data.labels.choose_columns import refuse_twins
from penstock.loaders.data.labels.label_text import plain_label
from penstock.loaders.data.labels.row_errors import Fail
from penstock.loaders.data.labels.text_places import JSON, Twice, encode_texts, parse_place
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown

FOLDER, SHARD = "folder", "shard"
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")  # as written by pickle and numpy
_SHOWN = 8  # number of suffixes in an error
TEXTS = (b"cls", b"class", b"label")  # suffixes of members that contain only a label
Table = Mapping[bytes, bytes]  # key -> label


class LabelPlace(NamedTuple):
    """A place of labels or texts: a member of each sample, or a field in it.

    Attributes:
        suffix: suffix of the member.
        field: field of its JSON object; "" if the whole text is the label.
        quoted_field: the field as written in JSON.
        is_text: whether it is a place of texts, such as captions.
    """

    suffix: bytes
    field: str = ""
    quoted_field: bytes = b""
    is_text: bool = False

    @property
    def word(self) -> str:
        """The word for its values in messages."""
        return "text" if self.is_text else "label"

    def find(self, content: object) -> bytes | None:
        """Return the label in `content`, the member's bytes or the value from parse_json; None without the field.

        A label that is null, NaN or an empty text is b"". A text is encoded for read_texts. Raises ValueError with the
        cause for an invalid label.
        """
        if self.is_text:
            return encode_texts(content, self.field, f"its .{os.fsdecode(self.suffix)} member")
        if isinstance(content, bytes):
            text = content.removeprefix(codecs.BOM_UTF8).strip()
            what = f"its {self.describe_member()}"
        elif isinstance(content, dict):
            if self.field not in content:
                return None
            value, what = content[self.field], f"the field {self.field!r} of its .json member"
            if isinstance(value, (dict, Twice)) or value in (math.inf, -math.inf):
                raise ValueError(f"{what} is {shown(value)}")
            text = _as_bytes(value)
        else:
            raise ValueError(f"its .{os.fsdecode(self.suffix)} member is not a JSON object with field {self.field!r}")
        wrong = "more than one line" if b"\n" in text else "not text in UTF-8" if _CONTROL.search(text) else ""
        if wrong:
            raise ValueError(f"{what} is {wrong}")
        return text

    def describe(self) -> str:
        """Return the value of the option `label` for this place."""
        return f"{JSON}{self.field}" if self.field else os.fsdecode(self.suffix)

    def describe_member(self, suffixes: Sequence[bytes] = ()) -> str:
        """Return the label's member in words, ".cls member"; lists a tar's `suffixes` if it is not one of them."""
        if suffixes and self.suffix not in suffixes:
            known = ", ".join(f".{os.fsdecode(suffix)}" for suffix in suffixes[:_SHOWN])
            return f".{os.fsdecode(self.suffix)} member, only {known}{', ...' * (len(suffixes) > _SHOWN)}"
        of_field = f" with a value in the field {self.field!r}" if self.field else ""
        return f".{os.fsdecode(self.suffix)} member{of_field}"


class LabelPlaces(NamedTuple):
    """The possible places of labels, and the place of texts.

    Attributes:
        places: the places; of a choice, the first that any sample has is used. The place of texts is the last.
        names: names of the labels, if there are several; () for one label.
        is_choice: whether the place is chosen automatically.
    """

    places: tuple[LabelPlace, ...]
    names: tuple[str, ...] = ()
    is_choice: bool = False

    @property
    def of_labels(self) -> tuple[LabelPlace, ...]:
        """The places of labels."""
        return tuple(place for place in self.places if not place.is_text)

    @property
    def of_text(self) -> int | None:
        """The number of the place of texts; None without texts."""
        return len(self.places) - 1 if len(self.of_labels) < len(self.places) else None

    def with_text(self, text: object) -> LabelPlaces:
        """Return these places and the place of the option `text`, if it is not None. Raises ValueError."""
        if text is None:
            return self
        place = LabelPlace(*parse_place(text), is_text=True)
        return self._replace(places=(*self.places, place))


def label_places(label: object) -> LabelPlaces:
    """Return the places of the labels for the option `label`; none if they are not in members."""
    if label is None:
        places = (
            *map(LabelPlace, TEXTS),
            *(LabelPlace(b"json", name, b'"%s"' % name.encode()) for name in ("label", "cls")),
        )
        return LabelPlaces(places, is_choice=True)
    if isinstance(label, str) and label.startswith(JSON) and label != JSON:
        return LabelPlaces((LabelPlace(b"json", label[len(JSON) :]),))
    if isinstance(label, str) and "/" not in label and os.fsencode(label.lower().rpartition(".")[2]) in TEXTS:
        return LabelPlaces((LabelPlace(os.fsencode(label.lower())),))
    if isinstance(label, (list, tuple)):
        found = {str(part).removeprefix(JSON): label_places(part).places for part in label if part is not None}
        if not found or len(found) < len(label) or not all(len(places) == 1 for places in found.values()):
            raise ValueError(f"several labels must be a list of different 'json:FIELD' and 'cls', got {shown(label)}")
        return LabelPlaces(tuple(place for (place,) in found.values()), tuple(found))
    return LabelPlaces(())


def open_table(label: object) -> Table | None:
    """Return the option `label` as a table, if it is a dict or a path; otherwise None. Raises ValueError, OSError.

    A file has a key and a label per line, separated by a tab or a comma; or a first line with the column names "key"
    and "label", in upper or lower case.
    """
    if label is None or (isinstance(label, str) and label in (FOLDER, SHARD)) or label_places(label).places:
        return None
    if isinstance(label, Mapping):
        return _make_table((_as_bytes(key), _as_bytes(value)) for key, value in label.items())
    if not isinstance(label, (str, bytes, os.PathLike)) or not os.path.isfile(label):
        raise ValueError(
            "label must be 'cls', 'json:FIELD', a list of these, 'folder', 'shard', a dict {key: label}, or the "
            f"path of a CSV or TSV file of keys and labels, got {shown(label)}"
        )
    with open(label, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows = [row for row in csv.reader(file, delimiter="\t" if "\t" in first else ",") if row]
    key, value, header = 0, 1, [name.strip().lower() for name in rows[0]] if rows else []
    if {"key", "label"} <= set(header):
        refuse_twins(["key", "label"], header)
        key, value = header.index("key"), header.index("label")
        del rows[0]
    elif more := next((row for row in rows if len(row) > 2), None):  # any column may be the label
        raise ValueError(
            f"{os.fsdecode(label)!a} must have a key and a label in each line, or a first line with the column names "
            f"'key' and 'label', got {shown(more)}"
        )
    short = next((number for number, row in enumerate(rows) if len(row) <= max(key, value)), None)
    if short is not None:
        raise ValueError(f"{os.fsdecode(label)!a} must have a key and a label in each line, got {rows[short]!a}")
    return _make_table((_as_bytes(row[key]), _as_bytes(row[value])) for row in rows)


def _make_table(rows: Iterable[tuple[bytes, bytes]]) -> Table:
    """Return the labels by key. Raises ValueError for a repeated key."""
    table: dict[bytes, bytes] = {}
    for key, value in rows:
        key = _without_dot(key)
        if key in table:
            raise ValueError(f"the table of labels must have each key once, but {printable(key)} occurs twice")
        table[key] = value
    return table


def folder_labels(names: Sequence[bytes]) -> list[bytes | None] | None:
    """Return the class folder of each member; None if no name has a folder.

    It is the first folder in which the names differ, since class folders share a parent. A member outside these folders
    gets None. If all members are in one folder, that folder is the class.
    """
    folders = {name[: name.rfind(b"/") + 1] for name in names}
    parts = {folder: [part for part in folder.split(b"/") if part not in (b"", b".")] for folder in folders}
    if not any(parts.values()):
        return None
    first, last = min(parts.values()), max(parts.values())
    differs = [number for number, (one, other) in enumerate(zip(first, last, strict=False)) if one != other]
    shared = differs[0] if differs else min(len(first), len(last)) - (first == last)
    classes = {folder: part[shared] if len(part) > shared else None for folder, part in parts.items()}
    return [classes[name[: name.rfind(b"/") + 1]] for name in names]


def table_labels(
    table: Table, names: Sequence[bytes], key_of: Callable[[bytes], bytes], fail: Fail
) -> list[bytes | None]:
    """Return each member's label in `table`, by its name or its key; None for a member without one.

    Raises the error of `fail` if a key of the table belongs to two members, or if it has two labels for one member.
    """
    labels: list[bytes | None] = []
    taken = array("q")  # hashes of keys: the keys themselves would take ten times the memory
    for number, name in enumerate(names):
        known = _find_keys(table, name, key_of)
        labels.append(table[known[0]] if known else None)
        if len({table[each] for each in known}) > 1:
            _refuse_shared(table, names, number, key_of, fail)
            cause = f"the table has two labels for it, under {printable(known[0])} and under {printable(known[1])}"
            raise fail(number, cause, "remove one of them from the table")
        taken.extend(map(hash, known[:1]))
    if len(np.unique(taken)) < len(taken):
        _refuse_shared(table, names, len(names), key_of, fail)
    return labels


def _find_keys(table: Table, name: bytes, key_of: Callable[[bytes], bytes]) -> list[bytes]:
    """Return the keys of a table that belong to a member: its name, its key, both or none."""
    return [each for each in (_without_dot(name), _without_dot(key_of(name))) if table.get(each)]


def _refuse_shared(
    table: Table, names: Sequence[bytes], count: int, key_of: Callable[[bytes], bytes], fail: Fail
) -> None:
    """Raise the error of `fail` if a key of the table belongs to two of the first `count` members."""
    firsts: dict[bytes, int] = {}
    for number, name in enumerate(islice(names, count)):
        for key in _find_keys(table, name, key_of)[:1]:
            if firsts.setdefault(key, number) != number:
                other = printable(names[firsts[key]])
                cause = f"the key {printable(key)} of the table also belongs to {other}"
                fix = "rename one of them, or pass labels in the order of the images to with_labels"
                raise fail(number, cause, fix)


def _as_bytes(value: object) -> bytes:
    """Return a label of a table or JSON field as text; a missing one is empty."""
    plain = plain_label(value)
    if isinstance(plain, (list, tuple, set, frozenset)):
        members = sorted(plain, key=str) if isinstance(plain, (set, frozenset)) else list(plain)
        plain = json.dumps(members, default=plain_label)
    return b"" if plain is None else str(plain).encode("utf-8", "surrogateescape")


def _without_dot(key: bytes) -> bytes:
    return key[2:] if key.startswith(b"./") else key
