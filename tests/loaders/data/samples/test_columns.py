"""Columns: packed arrays are read back unchanged, and only from within their bytes."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from penstock.loaders.data.fields.packed_fields import PackedField, join_fields, pack_fields, unpack_fields
from penstock.loaders.data.samples.columns import StoredValues, save_columns, take_values
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged

KINDS = {
    "boxes": FieldKind(kind="boxes", classes=(b"a", b"b")),
    "points": FieldKind(kind="keypoints", of="boxes", points=2),
    "pose": FieldKind(kind="keypoints", points=1),
    "mask": FieldKind(kind="mask"),
    "id": FieldKind(kind="integer"),
    "text": FieldKind(kind="text"),
    "object": FieldKind(kind="json"),
}
LENGTHS = np.array([2, 0, 1], np.int64)
VALUES: dict[str, Any] = {
    "boxes": Ragged(LENGTHS, (np.arange(12, dtype="f4").reshape(3, 4), np.array([1, 0, 1]))),
    "points": Ragged(LENGTHS, (np.ones((3, 2, 3), np.float32),)),
    "pose": np.full((3, 1, 3), 2, np.float32),
    "id": np.array([7, 8, 9]),
    "text": ["a", "\u00e9\udcff", ""],
    "object": [{"a": 1}, None, [2]],
}


class Fields:
    field_kinds = KINDS

    def fields(self, indices: np.ndarray) -> dict[str, Any]:
        assert indices.tolist() == [0, 1, 2]
        return VALUES


def pack_example() -> tuple[list[PackedField], np.ndarray]:
    return pack_fields(Fields(), 0, 3)  # type: ignore[arg-type]


def test_the_bytes_in_caches_stay_the_same() -> None:
    fields, data = pack_example()
    assert hashlib.blake2b(data.data, digest_size=8).hexdigest() == "88fbb4bca99328b8"
    columns = join_fields(fields, [unpack_fields(fields, data, 3)] * 2)
    assert list(columns) == [name for name in KINDS if name != "mask"]
    for name, column in columns.items():
        loaded, wanted = take_values(KINDS[name], column, np.array([3, 4, 5])), VALUES[name]
        np.testing.assert_equal(loaded, wanted)


@pytest.mark.parametrize(
    ("name", "shapes", "text"),
    [
        ("boxes", [[4], [4, 4], [4]], "impossible lengths"),
        ("boxes", [[3], [3, 3], [3]], "has the shapes"),
        ("boxes", [[3]], "has the shapes"),
        ("id", [[]], "has the shapes"),
        ("id", [[2]], "impossible lengths"),
        ("pose", [[1 << 62, 1, 3]], "does not fit in"),
    ],
)
def test_fields_of_other_shapes_are_refused(name: str, shapes: list[list[int]], text: str) -> None:
    field = PackedField(name=name, kind=KINDS[name], shapes=shapes)
    with pytest.raises(ValueError, match=text):
        unpack_fields([field], np.full(160, 255, np.uint8), 3)


def test_saved_columns_are_read_back_unchanged(own_cache: Any) -> None:
    columns = {"x": StoredValues(np.arange(3, dtype=np.float32), (b"\xff", b"b")), "": StoredValues(np.zeros((2, 0)))}
    for name in (b"a.index", None):
        saved = save_columns(columns, "me", name)
        assert saved.identity == "me"
        assert list(saved.columns) == ["x", ""]
        assert saved.columns["x"].classes == (b"\xff", b"b")
        for each, (values, _) in columns.items():
            np.testing.assert_equal(saved.columns[each].values, values)
