"""Adds fields to the samples of a source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from penstock.loaders.data.fields.coco_masks import CocoMasks
from penstock.loaders.data.fields.mask_files import MaskFiles, MaskSource
from penstock.loaders.data.fields.yolo import TextFiles
from penstock.loaders.data.samples.columns import ArrayColumn, RaggedColumn
from penstock.loaders.data.sources.contract import Source
from penstock.loaders.data.sources.data import Data, as_data
from penstock.loaders.data.sources.step import Step
from penstock.pipelines.fields.field_kinds import FieldKind


class Field(NamedTuple):
    """Hold a field of all samples: what it is, and its values, of masks what reads them."""

    kind: FieldKind
    column: RaggedColumn | ArrayColumn | MaskFiles | MaskSource | CocoMasks

    def path(self, row: int, sample: bytes) -> bytes | None:
        """Return the path of the file that holds the value of the sample called `sample`; None if there is none."""
        if isinstance(self.column, TextFiles):
            return self.column.path(sample)
        return self.column.path(row) if isinstance(self.column, (MaskFiles, MaskSource)) else None


def add_fields(source: Source, of: Mapping[str, Field]) -> Data:
    """Return `source` with fields next to those that it has, or in their place where these have the same name."""
    digest = hashlib.blake2b(b"penstock fields 1", digest_size=16)
    for name, (kind, column) in sorted(of.items()):
        digest.update(repr((name, kind)).encode() + column.digest())
        if kind.first_class:
            digest.update(f"classes from {kind.first_class}".encode())
    return as_data(source).add(Step(f"with fields {digest.hexdigest()}", after=f", with {', '.join(of)}", fields=of))
