"""Serves the samples of a source with fields of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.coco_masks import CocoMasks
from penstock.loaders.data.fields.mask_files import MaskFiles, MaskSource
from penstock.loaders.data.fields.yolo import TextFiles
from penstock.loaders.data.files.contract import FieldSource, Source, has_fields
from penstock.loaders.data.files.view import View
from penstock.loaders.data.samples.columns import ArrayColumn, BytesColumn, RaggedColumn, take_values
from penstock.pipelines.fields.field_kinds import FieldKind


class Field(NamedTuple):
    """Hold a field of all samples: what it is, and its values."""

    kind: FieldKind
    column: RaggedColumn | ArrayColumn | MaskFiles | MaskSource | CocoMasks


class Fielded(View):
    """Serve the samples of a source, in its order, with fields of their own next to those that it has.

    Args:
        of: name -> the field of that name, which replaces one of the source.

    Attributes:
        field_kinds: name -> what it is.
    """

    keeps_order = True

    def __init__(self, source: Source, of: Mapping[str, Field]) -> None:
        self._of = dict(of)
        digest = hashlib.blake2b(b"penstock fields 1", digest_size=16)
        for name, (kind, column) in sorted(of.items()):
            digest.update(repr((name, kind)).encode() + column.digest())
            if kind.first_class:
                digest.update(f"classes from {kind.first_class}".encode())
        super().__init__(source, len(source), f"with fields {digest.hexdigest()}")

    def _show(self, source: Source) -> None:
        super()._show(source)
        self.has_fields = True
        self._files: bytes | None = None
        # What belongs to boxes that are replaced, such as their keypoints, goes with them.
        kept = {name: kind for name, kind in self.field_kinds.items() if kind.of not in self._of}
        self.field_kinds = {**kept, **{name: kind for name, (kind, _) in self._of.items()}}

    @property
    def content(self) -> str:
        """Hex digest that covers the modification times of images, and of masks as they were at the first call."""
        if self._files is None:
            columns = [column for _, column in self._of.values()]
            self._files = b"".join(
                column.content() for column in columns if isinstance(column, (MaskFiles, MaskSource))
            )
        return hashlib.blake2b(super().content.encode() + self._files, digest_size=32).hexdigest()

    def refreshed(self) -> View:
        """Return the same of images and masks as they are now."""
        now = super().refreshed()
        return self.over(self.source) if now is self else now

    @property
    def is_cached_whole(self) -> bool:
        """Whether a cache holds these fields: where all samples are shown, so that other parts can share it."""
        return not isinstance(self.source, View) or self.source.is_cached_whole

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` that are no masks."""
        found = self.source.fields(indices) if has_fields(self.source) else {}
        return found | {
            name: take_values(kind, column, indices)
            for name, (kind, column) in self._of.items()
            if kind.kind != "mask" and isinstance(column, (RaggedColumn, ArrayColumn))
        }

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        """Return mask `name` of image `index`, encoded or as an array [h, w]."""
        if name not in self._of:
            assert isinstance(self.source, FieldSource)
            return self.source.mask(name, index)
        column = self._of[name].column
        assert isinstance(column, BytesColumn) or not isinstance(column, RaggedColumn)
        return column.read(index)

    def field_path(self, name: str, index: int) -> bytes | None:
        """Return the path of the file that holds field `name` of image `index`; None if it lies in none of its own."""
        if name not in self._of:
            return super().field_path(name, index)
        column = self._of[name].column
        if isinstance(column, TextFiles):
            return column.path(self.name(index))
        return column.path(index) if isinstance(column, (MaskFiles, MaskSource)) else None

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{self.source.describe()}, with {', '.join(self._of)}"
