"""Adds fields to the samples of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.coco_masks import CocoMasks
from penstock.loaders.data.fields.mask_files import MaskFiles, MaskSource
from penstock.loaders.data.fields.yolo import TextFiles
from penstock.loaders.data.files.contract import Source
from penstock.loaders.data.files.data import Data, as_data
from penstock.loaders.data.files.step import Step
from penstock.loaders.data.samples.columns import ArrayColumn, BytesColumn, RaggedColumn, take_values
from penstock.pipelines.fields.field_kinds import FieldKind


class Field(NamedTuple):
    """Hold a field of all samples: what it is, and its values."""

    kind: FieldKind
    column: RaggedColumn | ArrayColumn | MaskFiles | MaskSource | CocoMasks

    def values(self, rows: npt.NDArray[np.int64]) -> Any:
        """Return the values of rows, not of a mask, as FieldSource.fields does."""
        assert isinstance(self.column, (RaggedColumn, ArrayColumn))
        return take_values(self.kind, self.column, rows)

    def mask(self, row: int) -> bytes | npt.NDArray[Any]:
        """Return a mask, encoded or as an array [h, w]."""
        assert isinstance(self.column, BytesColumn) or not isinstance(self.column, RaggedColumn)
        return self.column.read(row)

    def path(self, row: int, sample: bytes) -> bytes | None:
        """Return the path of the file that holds the value of the sample called `sample`; None if there is none."""
        if isinstance(self.column, TextFiles):
            return self.column.path(sample)
        return self.column.path(row) if isinstance(self.column, (MaskFiles, MaskSource)) else None

    def content(self) -> bytes:
        """Return a digest of the times of the files of masks."""
        return self.column.content() if isinstance(self.column, (MaskFiles, MaskSource)) else b""


def add_fields(source: Source, of: Mapping[str, Field]) -> Data:
    """Return `source` with fields next to those that it has, or in their place where these have the same name."""
    digest = hashlib.blake2b(b"penstock fields 1", digest_size=16)
    for name, (kind, column) in sorted(of.items()):
        digest.update(repr((name, kind)).encode() + column.digest())
        if kind.first_class:
            digest.update(f"classes from {kind.first_class}".encode())
    return as_data(source).add(Step(f"with fields {digest.hexdigest()}", after=f", with {', '.join(of)}", fields=of))
