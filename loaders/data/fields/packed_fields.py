"""Packs the fields of samples that are no masks into one array of bytes, and reads them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.columns import ENCODED, ArrayColumn, RaggedColumn, ragged_bytes
from penstock.loaders.data.files.contract import FieldSource
from penstock.loaders.data.files.source_faults import naming_method
from penstock.loaders.system.json_file import Count
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import Ragged, join_rows

_ALIGNMENT = 8
_AT_ONCE = 4096  # samples that a source is asked for


@dataclass(frozen=True, kw_only=True)
class PackedField:
    """Say what a field is and how it lies in the packed bytes.

    Attributes:
        name: of the field.
        kind: what it is.
        shapes: shape of each of its arrays, whose types and number follow from the kind. The first one of a ragged
            field holds the lengths. Empty for a mask.
    """

    name: str
    kind: FieldKind
    shapes: list[list[Count]]


def pack_fields(source: FieldSource, first: int, end: int) -> tuple[list[PackedField], npt.NDArray[np.uint8]]:
    """Return the fields of samples `first` to `end` (excluded), and their packed bytes. Raises LoaderError, ValueError.

    The arrays follow each other, each at a multiple of 8 bytes.
    """
    fields, parts = [], [b""]
    with naming_method("fields()"):
        starts = range(first, end, _AT_ONCE)
        blocks = [source.fields(np.arange(at, min(at + _AT_ONCE, end), dtype=np.int64)) for at in starts]
        for name, kind in source.field_kinds.items():
            arrays: list[npt.NDArray[Any]] = []
            if kind.kind != "mask":
                arrays = _to_arrays(kind, join_rows([block[name] for block in blocks]), end - first)
            for array in arrays:
                parts += [array.tobytes(), bytes(-array.nbytes % _ALIGNMENT)]
            fields.append(PackedField(name=name, kind=kind, shapes=[list(array.shape) for array in arrays]))
    return fields, np.frombuffer(b"".join(parts), np.uint8)


def unpack_fields(fields: Sequence[PackedField], data: npt.NDArray[np.uint8], num_samples: int) -> dict[str, Any]:
    """Return the values of `num_samples` samples by name, a Ragged or an array each; views of `data`.

    Raises ValueError for shapes that do not fit: a digest proves that bytes are whole, not that they are benign.
    """
    found: dict[str, Any] = {}
    at = 0
    for field in fields:
        arrays = []
        for dtype, shape in zip(_types(field.kind, len(field.shapes)), field.shapes, strict=True):
            num_bytes = dtype.itemsize
            for side in shape:
                num_bytes *= side
            if not shape or at + num_bytes > len(data):
                raise ValueError(f"{field.name} does not lie within their {len(data):,} bytes")
            arrays.append(data[at : at + num_bytes].view(dtype).reshape(shape))
            at += num_bytes + -num_bytes % _ALIGNMENT
        if len(arrays) == 1:
            found[field.name] = arrays[0]
        elif arrays:
            lengths, *rest = arrays
            if lengths.ndim != 1 or (lengths < 0).any() or (lengths > len(data)).any():
                raise ValueError(f"{field.name} has impossible lengths")
            found[field.name] = Ragged(lengths, tuple(rest)).checked(num_samples)
        if arrays and (len(arrays[0]) != num_samples or not _fits(field.kind, arrays)):
            raise ValueError(f"{field.name} has the shapes {field.shapes}")
    return found


def join_fields(
    fields: Sequence[PackedField], values: Sequence[dict[str, Any]]
) -> dict[str, RaggedColumn | ArrayColumn]:
    """Return columns of what several files hold, one after another, without masks."""
    columns: dict[str, RaggedColumn | ArrayColumn] = {}
    for name in (field.name for field in fields if field.shapes):
        joined = join_rows([each[name] for each in values])
        columns[name] = RaggedColumn(joined) if isinstance(joined, Ragged) else ArrayColumn(joined)
    return columns


def _types(kind: FieldKind, count: int) -> list[np.dtype[Any]]:
    """Return the types of the arrays of a field that has `count` of them: boxes may lack the sizes of their images."""
    if kind.kind == "mask":
        return []
    if kind.kind == "keypoints" and not kind.of:
        return [np.dtype("<f4")]
    if kind.kind == "integer":
        return [np.dtype("<i8")]
    of_boxes = ["<f4", "<i8", "<i4"][: max(count - 1, 2)]
    parts = {"boxes": of_boxes, "keypoints": ["<f4"]}.get(kind.kind, ["u1"])
    return [np.dtype(each) for each in ("<i8", *parts)]


def _fits(kind: FieldKind, arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Return whether elements have the shape of their kind."""
    of_each = [array.shape[1:] for array in arrays[-1 if kind.kind in ("keypoints", "integer") else 1 :]]
    shapes: dict[str, list[tuple[int, ...]]] = {"boxes": [(4,), (), (2,)], "keypoints": [(kind.points, 3)]}
    wanted = shapes.get(kind.kind, [()])
    return of_each == wanted[: len(of_each)]


def _to_arrays(kind: FieldKind, values: Any, num_samples: int) -> list[npt.NDArray[Any]]:
    if kind.kind in ENCODED:
        encode = ENCODED[kind.kind][0]
        values = ragged_bytes([encode(value) for value in values])
    given = [values.checked(num_samples).lengths, *values.parts] if isinstance(values, Ragged) else [values]
    return [np.ascontiguousarray(array, dtype) for array, dtype in zip(given, _types(kind, len(given)), strict=True)]
