"""Labels of samples in tars: where they stand, and what they are as text."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.loaders.tars.tar_headers import TarReader
from penstock.loaders.tars.tar_samples import Sample, sample_key
from penstock.pipelines.checked import shown

FOLDER, SHARD = "folder", "shard"
JSON = "json:"
_MOST_LABEL_BYTES = 16 << 20  # of a member that holds a label
Table = Mapping[bytes, bytes]  # key -> label


class LabelMember(NamedTuple):
    """Name the member that holds the label of a sample.

    Attributes:
        suffix: of the member.
        field: in the JSON object that it holds; "" if the whole text is the label.
        integers_only: whether a label that is no integer counts as none.
    """

    suffix: bytes
    field: str = ""
    integers_only: bool = False

    def read(self, reader: TarReader, sample: Sample) -> bytes:
        """Return the label as text. Raises ValueError, which says why there is none, OSError."""
        member = sample.get(self.suffix)
        if member is None:
            there = ", ".join(f".{os.fsdecode(suffix)}" for suffix in sorted(sample))
            raise ValueError(f"the sample has no .{os.fsdecode(self.suffix)} member, only {there}")
        if member.size > _MOST_LABEL_BYTES:
            raise ValueError(f"its .{os.fsdecode(self.suffix)} member has {member.size:,} bytes")
        text = reader.read(member.start, member.size)
        if not self.field:
            return _checked_text(text.strip(), "its .cls member")
        try:
            value = json.loads(text)[self.field]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(f"its .json member is no object with the field {self.field!r}") from None
        kinds = int if self.integers_only else (int, float, str, list)
        is_finite = not isinstance(value, float) or math.isfinite(value)
        if isinstance(value, bool) or not isinstance(value, kinds) or not is_finite:
            raise ValueError(f"the field {self.field!r} of its .json member is {shown(value)}")
        return _checked_text(_as_bytes(value), f"the field {self.field!r}")

    def describe(self) -> str:
        """Return the value of the option `label` that chooses this place."""
        return f"{JSON}{self.field}" if self.field else "cls"


class NamedMembers(NamedTuple):
    """Name the members that hold several labels of a sample: name -> member."""

    members: tuple[tuple[str, LabelMember], ...]

    def read(self, reader: TarReader, sample: Sample) -> bytes:
        """Return the labels as the text of a JSON object. Raises as LabelMember.read."""
        texts = {name: member.read(reader, sample) for name, member in self.members}
        return json.dumps({name: os.fsdecode(text) for name, text in texts.items()}).encode()

    def describe(self) -> str:
        """Return the value of the option `label` that chooses these places."""
        return ", ".join(member.describe() for _, member in self.members)


def label_members(label: Any) -> tuple[LabelMember | NamedMembers, ...]:
    """Return the members that may hold the labels which the option `label` asks for, the first choice first."""
    if label is None:
        json_fields = (LabelMember(b"json", field, integers_only=True) for field in ("label", "cls"))
        return (LabelMember(b"cls"), *json_fields)
    if label == "cls":
        return (LabelMember(b"cls"),)
    if isinstance(label, str) and label.startswith(JSON):
        return (LabelMember(b"json", label[len(JSON) :]),)
    if isinstance(label, (list, tuple)):
        found = [(str(part).removeprefix(JSON), label_members(part)) for part in label]
        if not found or not all(len(members) == 1 for _, members in found) or len(dict(found)) < len(found):
            raise ValueError(f"several labels must be a list of different 'json:FIELD' and 'cls', got {shown(label)}")
        return (NamedMembers(tuple((name, member) for name, (member,) in found)),)  # type: ignore[misc]
    return ()


def open_table(label: Any) -> Table | None:
    """Return the table that the option `label` is or names; None if it is neither. Raises ValueError, OSError.

    A file has a key and a label per line, separated by a tab or a comma; or a first line that names a column "key" and
    one "label".
    """
    if label is None or (isinstance(label, str) and label in (FOLDER, SHARD)) or label_members(label):
        return None
    if isinstance(label, Mapping):
        return {_without_dot(_as_bytes(key)): _as_bytes(value) for key, value in label.items()}
    if not isinstance(label, (str, bytes, os.PathLike)) or not os.path.isfile(label):
        raise ValueError(
            "label must be 'cls', 'json:FIELD', a list of these, 'folder', 'shard', a dict {key: label}, or the "
            f"path of a CSV or TSV file of keys and labels, got {shown(label)}"
        )
    with open(label, encoding="utf-8", errors="surrogateescape", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows = [row for row in csv.reader(file, delimiter="\t" if "\t" in first else ",") if row]
    key, value = 0, 1
    if rows and {"key", "label"} <= set(rows[0]):
        key, value = rows[0].index("key"), rows[0].index("label")
        del rows[0]
    short = next((number for number, row in enumerate(rows) if len(row) <= max(key, value)), None)
    if short is not None:
        raise ValueError(f"{os.fsdecode(label)!a} must have a key and a label in each line, got {rows[short]!a}")
    return {_without_dot(_as_bytes(row[key])): _as_bytes(row[value]) for row in rows}


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


def table_labels(table: Table, names: Sequence[bytes]) -> list[bytes | None]:
    """Return for each member the label that `table` has for its key, or for its name; None if it has neither."""
    plain = map(_without_dot, names)
    return [table.get(sample_key(name)) or table.get(name) for name in plain]


def _checked_text(text: bytes, what: str) -> bytes:
    if not text or b"\n" in text:
        raise ValueError(f"{what} is {'empty' if not text else 'more than one line'}")
    return text


def _as_bytes(value: Any) -> bytes:
    text = json.dumps(value) if isinstance(value, list) else value if isinstance(value, bytes) else str(value)
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _without_dot(key: bytes) -> bytes:
    return key[2:] if key.startswith(b"./") else key
