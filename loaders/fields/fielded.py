"""Serves the samples of a source with fields of their own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.fields.columns import ArrayColumn, BytesColumn, RaggedColumn
from penstock.loaders.fields.mask_files import MaskFiles, MaskSource
from penstock.loaders.sources.contract import FieldSource, Source, has_fields
from penstock.loaders.sources.view import View
from penstock.pipelines.fields.field_kinds import FieldKind

Column = RaggedColumn | ArrayColumn | MaskFiles | MaskSource


class Field(NamedTuple):
    """Hold a field of all samples: what it is, and its values."""

    kind: FieldKind
    column: Column


class Fielded(View):
    """Serve the samples of a source, in its order, with fields of their own next to those that it has.

    Args:
        of: name -> the field of that name, which replaces one of the source.

    Attributes:
        field_kinds: name -> what it is.
    """

    def __init__(self, source: Source, of: Mapping[str, Field]) -> None:
        self._of = dict(of)
        digest = hashlib.blake2b(b"penstock fields 1", digest_size=16)
        for name, (kind, column) in sorted(of.items()):
            digest.update(repr((name, kind)).encode() + column.digest())
        super().__init__(source, len(source), f"with fields {digest.hexdigest()}")

    def _show(self, source: Source) -> None:
        super()._show(source)
        self.has_fields = True
        self.field_kinds = {**self.field_kinds, **{name: kind for name, (kind, _) in self._of.items()}}

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` that are no masks."""
        found = self.source.fields(indices) if has_fields(self.source) else {}
        return found | {name: _take(field, indices) for name, field in self._of.items() if field.kind.kind != "mask"}

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        """Return mask `name` of image `index`, encoded or as an array [h, w]."""
        if name not in self._of:
            assert isinstance(self.source, FieldSource)
            return self.source.mask(name, index)
        column = self._of[name].column
        assert not isinstance(column, RaggedColumn)
        return column.take(index) if isinstance(column, ArrayColumn) else column.read(index)

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{self.source.describe()}, with {', '.join(self._of)}"


def _take(field: Field, indices: npt.NDArray[np.int64]) -> Any:
    column = field.column
    if isinstance(column, BytesColumn):
        values = column.take_bytes(indices)
        if field.kind.kind == "bytes":
            return values
        return [
            value.decode("utf-8", "surrogateescape") if field.kind.kind == "text" else json.loads(value)
            for value in values
        ]
    assert isinstance(column, (RaggedColumn, ArrayColumn))
    return column.take(indices)
