"""Packs the fields of samples, except masks, into one array of bytes, and unpacks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import ArrayColumn, RaggedColumn, pack_arrays, ragged_bytes, unpack_arrays
from penstock.loaders.data.sources.contract import FieldSource
from penstock.loaders.data.sources.source_faults import naming_method
from penstock.loaders.system.json_file import Count
from penstock.pipelines.fields.field_kinds import Elements, FieldKind
from penstock.pipelines.fields.ragged import Ragged, join_rows

_ALIGNMENT = 8
_AT_ONCE = 4096  # samples per request to a source


@dataclass(frozen=True, kw_only=True)
class PackedField:
    """A field's kind and its layout in the packed bytes.

    Attributes:
        name: name of the field.
        kind: its kind.
        shapes: shapes of its arrays; their types and number follow from the kind. The first array of a ragged field
            contains the lengths. Empty for a mask.
    """

    name: str
    kind: FieldKind
    shapes: list[list[Count]]


def pack_fields(source: FieldSource, first: int, end: int) -> tuple[list[PackedField], npt.NDArray[np.uint8]]:
    """Return the fields of samples `first` to `end` (excluded), and their packed bytes. Raises LoaderError, ValueError.

    The arrays follow each other, each at a multiple of 8 bytes.
    """
    fields: list[PackedField] = []
    arrays: list[npt.NDArray[Any]] = []
    with naming_method("fields()"):
        starts = range(first, end, _AT_ONCE)
        blocks = [source.fields(np.arange(at, min(at + _AT_ONCE, end), dtype=np.int64)) for at in starts]
        for name, kind in source.field_kinds.items():
            own = _to_arrays(kind, join_rows([block[name] for block in blocks]), end - first) if kind.elements else []
            fields.append(PackedField(name=name, kind=kind, shapes=[list(array.shape) for array in own]))
            arrays += own
    return fields, pack_arrays(arrays, _ALIGNMENT)


def unpack_fields(fields: Sequence[PackedField], data: npt.NDArray[np.uint8], num_samples: int) -> dict[str, Any]:
    """Return the values of `num_samples` samples by name, a Ragged or an array each; views of `data`.

    Raises ValueError for impossible shapes: a digest proves that bytes are intact, not that they are benign.
    """
    types: list[tuple[str, list[int]]] = []
    for field in fields:
        elements = _types(field.kind, len(field.shapes))
        if [tuple(shape[1:]) for shape in field.shapes if shape] != [shape for _, shape in elements]:
            raise ValueError(f"{field.name} has the shapes {field.shapes}")
        types += [(dtype, shape) for (dtype, _), shape in zip(elements, field.shapes, strict=True)]
    arrays, found = iter(unpack_arrays(types, data, _ALIGNMENT)), {}
    for field in (field for field in fields if field.shapes):
        first, *rest = islice(arrays, len(field.shapes))
        if len(first) != num_samples or (field.kind.is_ragged and ((first < 0) | (first > len(data))).any()):
            raise ValueError(f"{field.name} has impossible lengths")
        found[field.name] = Ragged(first, tuple(rest)).checked(num_samples) if field.kind.is_ragged else first
    return found


def join_fields(
    fields: Sequence[PackedField], values: Sequence[dict[str, Any]]
) -> dict[str, RaggedColumn | ArrayColumn]:
    """Return columns of the fields of several files, concatenated, without masks."""
    names = [field.name for field in fields if field.shapes]
    joined = {name: join_rows([each[name] for each in values]) for name in names}
    return {name: RaggedColumn(of) if isinstance(of, Ragged) else ArrayColumn(of) for name, of in joined.items()}


def _types(kind: FieldKind, count: int) -> Elements:
    """Return the types of a field's `count` arrays: boxes may lack the sizes of their images."""
    lengths = (("<i8", ()),) if kind.is_ragged else ()
    return lengths + kind.elements[: max(count - 1, 2)]


def _to_arrays(kind: FieldKind, values: Any, num_samples: int) -> list[npt.NDArray[Any]]:
    if kind.rules.encode is not None:
        values = ragged_bytes(list(map(kind.rules.encode, values)))
    given = [values.checked(num_samples).lengths, *values.parts] if isinstance(values, Ragged) else [values]
    return [
        np.ascontiguousarray(array, dtype) for array, (dtype, _) in zip(given, _types(kind, len(given)), strict=True)
    ]
