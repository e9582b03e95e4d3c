"""Labels of samples in tars: where they stand, and what they are as text."""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.loaders.data.labels.choose_columns import refuse_twins
from penstock.loaders.data.labels.label_text import plain_label
from penstock.loaders.data.labels.row_errors import Fail
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown

FOLDER, SHARD = "folder", "shard"
JSON = "json:"
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1f]")  # as in what pickle and numpy write
_SHOWN = 8  # suffixes in an error
TEXTS = (b"cls", b"class", b"label")  # suffixes of members whose whole text is a label
Table = Mapping[bytes, bytes]  # key -> label


class LabelPlace(NamedTuple):
    """Name a place of labels: a member of each sample, or a field in it.

    Attributes:
        suffix: of the member.
        field: in the JSON object that it holds; "" if the whole text is the label.
        quoted_field: the field as it stands in the text of an object.
    """

    suffix: bytes
    field: str = ""
    quoted_field: bytes = b""

    def find(self, content: object) -> bytes | None:
        """Return the label in `content`, the bytes of the member or what parse_json made of it; None without the field.

        A label that is null, NaN or an empty text is b"". Raises ValueError, which says what is wrong with it.
        """
        if isinstance(content, bytes):
            text = content.removeprefix(codecs.BOM_UTF8).strip()
            what = f"its {self.describe_member()}"
        elif isinstance(content, dict):
            if self.field not in content:
                return None
            value, what = content[self.field], f"the field {self.field!r} of its .json member"
            if isinstance(value, dict) or value in (math.inf, -math.inf):
                raise ValueError(f"{what} is {shown(value)}")
            text = _as_bytes(value)
        else:
            raise ValueError(f"its .{os.fsdecode(self.suffix)} member is no JSON object with the field {self.field!r}")
        wrong = "more than one line" if b"\n" in text else "not text in UTF-8" if _CONTROL.search(text) else ""
        if wrong:
            raise ValueError(f"{what} is {wrong}")
        return text

    def describe(self) -> str:
        """Return the value of the option `label` that chooses this place."""
        return f"{JSON}{self.field}" if self.field else os.fsdecode(self.suffix)

    def describe_member(self, suffixes: Sequence[bytes] = ()) -> str:
        """Return what holds the label: ".cls member"; `suffixes` are those of a tar, told if none is this."""
        if suffixes and self.suffix not in suffixes:
            known = ", ".join(f".{os.fsdecode(suffix)}" for suffix in suffixes[:_SHOWN])
            return f".{os.fsdecode(self.suffix)} member, only {known}{', ...' * (len(suffixes) > _SHOWN)}"
        of_field = f" with a value in the field {self.field!r}" if self.field else ""
        return f".{os.fsdecode(self.suffix)} member{of_field}"


def parse_json(content: bytes) -> object:
    """Return what a JSON member holds; None for other text."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


class LabelPlaces(NamedTuple):
    """Say where labels may be.

    Attributes:
        places: the places; of a choice the first that any sample has counts.
        names: what the labels are called, if there are several; () for one label.
        is_choice: whether it is not said which place.
    """

    places: tuple[LabelPlace, ...]
    names: tuple[str, ...] = ()
    is_choice: bool = False


def label_places(label: object) -> LabelPlaces:
    """Return the places of the labels that the option `label` asks for; none if they are not in members."""
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
    """Return the table that the option `label` is or names; None if it is neither. Raises ValueError, OSError.

    A file has a key and a label per line, separated by a tab or a comma; or a first line that names a column "key" and
    one "label", in any case.
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
    elif more := next((row for row in rows if len(row) > 2), None):  # any of which may be the label
        raise ValueError(
            f"{os.fsdecode(label)!a} must have a key and a label in each line, or a first line that names the columns "
            f"'key' and 'label', got {shown(more)}"
        )
    short = next((number for number, row in enumerate(rows) if len(row) <= max(key, value)), None)
    if short is not None:
        raise ValueError(f"{os.fsdecode(label)!a} must have a key and a label in each line, got {rows[short]!a}")
    return _make_table((_as_bytes(row[key]), _as_bytes(row[value])) for row in rows)


def _make_table(rows: Iterable[tuple[bytes, bytes]]) -> Table:
    """Return the labels by key. Raises ValueError for a key that comes twice."""
    table: dict[bytes, bytes] = {}
    for key, value in rows:
        key = _without_dot(key)
        if key in table:
            raise ValueError(f"the table of labels must have each key once, and {printable(key)} comes twice")
        table[key] = value
    return table


def folder_labels(names: Sequence[bytes]) -> list[bytes | None] | None:
    """Return for each member the folder that is its class; None if no name has a folder.

    It is the first folder of the name in which the names differ, as a class folder is below the folder that holds them
    all. None stands for a member next to these folders. If all lie in one folder, that is the class.
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


def table_labels(table: Table, names: Sequence[bytes], keys: Sequence[bytes], fail: Fail) -> list[bytes | None]:
    """Return for each member the label that `table` has for its name or its key; None if it has neither.

    Raises the error of `fail` for a label of two members, and for two labels of one.
    """
    labels: list[bytes | None] = []
    firsts: dict[bytes, int] = {}
    for number, (name, key) in enumerate(zip(names, keys, strict=True)):
        known = [each for each in (_without_dot(name), _without_dot(key)) if table.get(each)]
        labels.append(table[known[0]] if known else None)
        if len({table[each] for each in known}) > 1:
            cause = f"the table has two labels for it, of {printable(known[0])} and of {printable(known[1])}"
            raise fail(number, cause, "leave one of them out of the table")
        if known and firsts.setdefault(known[0], number) != number:
            cause = f"the key {printable(known[0])} of the table is also that of {printable(names[firsts[known[0]]])}"
            raise fail(number, cause, "rename one of them, or give the images labels in their order by with_labels")
    return labels


def _as_bytes(value: object) -> bytes:
    """Return a label as text, such as tables and fields of JSON hold it; a missing one is empty."""
    plain = plain_label(value)
    if isinstance(plain, (list, tuple, set, frozenset)):
        members = sorted(plain, key=str) if isinstance(plain, (set, frozenset)) else list(plain)
        plain = json.dumps(members, default=plain_label)
    return b"" if plain is None else str(plain).encode("utf-8", "surrogateescape")


def _without_dot(key: bytes) -> bytes:
    return key[2:] if key.startswith(b"./") else key
