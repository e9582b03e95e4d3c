"""Memory locations of the values of a column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from photo_tables import IMAGE

from penstock.loaders.data.arrow.arrow_values import Values, locate_values

DATA = [b"abc", b"", None, b"de", b"f" * 100]


def content(values: Values) -> list[bytes | None]:
    return [
        bytes(values.bytes_of(row)) if is_present else None for row, is_present in enumerate(values.present.tolist())
    ]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("part", [slice(0, 5), slice(1, 4), slice(3, 3)])
def test_bytes_of_whole_and_sliced_columns_are_located(kind: pa.DataType, part: slice) -> None:
    column = pa.array(DATA, kind)[part.start : part.stop]
    values = locate_values(column)
    assert content(values) == DATA[part]
    assert values.buffer is None or values.buffer.address == column.buffers()[2].address
    assert values.paths is None


@pytest.mark.parametrize("part", [slice(0, 4), slice(1, 3)])
def test_structs_of_bytes_and_path_are_located(part: slice) -> None:
    rows = [{"bytes": b"abc", "path": "a.jpg"}, {"bytes": None, "path": "b.jpg"}, None, {"bytes": b"d", "path": None}]
    values = locate_values(pa.array(rows, IMAGE)[part.start : part.stop])
    wanted = [row or {"bytes": None, "path": None} for row in rows[part]]
    assert content(values) == [row["bytes"] for row in wanted]
    assert [values.path_of(row) for row in range(len(wanted))] == [
        None if row["path"] is None else row["path"].encode() for row in wanted
    ]


def test_a_null_struct_hides_its_children() -> None:
    children = [pa.array([b"a", b"b"]), pa.array(["a.jpg", "b.jpg"])]
    column = pa.StructArray.from_arrays(children, fields=list(IMAGE), mask=pa.array([False, True]))
    values = locate_values(column)
    assert content(values) == [b"a", None]
    assert [values.path_of(0), values.path_of(1)] == [b"a.jpg", None]


def test_columns_of_paths_are_located() -> None:
    values = locate_values(pa.array(["a.jpg", None, ""]))
    assert content(values) == [None, None, None]
    assert [values.path_of(row) for row in range(3)] == [b"a.jpg", None, None]


@pytest.mark.parametrize(("ends", "text"), [([0, 9, 4], b"abcd"), ([0, 2, 4], b"ab\xff\xfe")])
def test_paths_outside_their_buffer_or_not_utf8_are_refused(ends: list[int], text: bytes) -> None:
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(text)]
    paths = pa.Array.from_buffers(pa.string(), 2, buffers)
    for column in (paths, pa.StructArray.from_arrays([pa.array([b"a", b"b"]), paths], fields=list(IMAGE))):
        with pytest.raises(pa.ArrowInvalid):
            locate_values(column)


@pytest.mark.parametrize("ends", [[0, 5, 3], [0, 2, 9], [-1, 2, 3]])
def test_offsets_outside_the_buffer_are_refused(ends: list[int]) -> None:
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(b"abcd")]
    with pytest.raises(pa.ArrowInvalid):
        locate_values(pa.Array.from_buffers(pa.binary(), 2, buffers))
