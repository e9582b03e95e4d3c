"""Keeps labels of all samples in one file next to an index of images, mapped by every process that needs them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

import numpy as np

from penstock.loaders.data.files.folder_index import FolderIndex
from penstock.loaders.data.files.range_index import RangeIndex
from penstock.loaders.data.labels.stored_labels import Labels, LabelValues, digest_labels
from penstock.loaders.system.column_file import ALIGNMENT, DamagedIndexError
from penstock.loaders.system.json_file import ByteText
from penstock.loaders.system.saved_columns import Open, SavedIndex, Write, load_saved, save_in_memory, save_index

FORMAT = 1
_COLUMNS = {"values": ("|u1",)}  # the arrays of all labels, one after another
_TYPES = ("<i4", "<f4", "|u1")


@dataclass(frozen=True)
class _Saved:
    name: str
    dtype: str
    shape: list[int]
    classes: list[ByteText]


@dataclass(frozen=True)
class _Header:
    digest: str
    labels: list[_Saved]
    format: int = FORMAT


class LabelIndex(SavedIndex):
    """Look up labels by name and sample.

    Attributes:
        labels: values by name.
        digest: hex digest of these and of the names of their classes.
    """

    kinds, header_class = _COLUMNS, _Header
    header: _Header

    def __init__(self, path: bytes, verify: bool = True) -> None:
        super().__init__(path, verify)
        header = self.header
        if any(saved.dtype not in _TYPES for saved in header.labels):
            raise DamagedIndexError("not an index of this version")
        self.digest, self.labels, start = header.digest, dict[str, LabelValues](), 0
        for saved in header.labels:
            dtype, count = np.dtype(saved.dtype), math.prod(saved.shape)
            end = start + count * dtype.itemsize
            if end > len(self.file.columns["values"]):
                raise DamagedIndexError("labels are missing")
            values = self.file.columns["values"][start:end].view(dtype).reshape(saved.shape)
            classes = tuple(name.encode("utf-8", "surrogateescape") for name in saved.classes)
            self.labels[saved.name] = LabelValues(values, classes)
            start = end + -end % ALIGNMENT

    @property
    def identity(self) -> str:
        """Hex digest of the labels."""
        return self.digest


def keep_labels(labels: Labels, name: bytes | None = None) -> LabelIndex:
    """Write labels to a file in the user's cache folder, or in memory without a `name`, and map it."""
    digest, records, parts = digest_labels(labels), list[_Saved](), list[bytes]()
    for label, (values, classes) in labels.items():
        names = [text.decode("utf-8", "surrogateescape") for text in classes]
        records.append(_Saved(label, values.dtype.str, list(values.shape), names))
        parts += [values.tobytes(), bytes(-values.nbytes % ALIGNMENT)]

    def write(file: BinaryIO) -> None:
        LabelIndex.write(file, _Header(digest, records), {"values": np.frombuffer(b"".join(parts), np.uint8)})

    return save_in_memory(write, LabelIndex) if name is None else save_index(name, write, LabelIndex)


Index = TypeVar("Index", FolderIndex, RangeIndex)


def load_with_labels(name: bytes, open_index: Open[Index]) -> tuple[Index | None, LabelIndex | None]:
    """Open the saved index `name`, with the labels that belong to it; None if either is not there or damaged."""
    index = load_saved(name, open_index)
    if index is None or not index.header.labels:
        return index, None
    labels = load_saved(_next_to(name), LabelIndex)
    return (index, labels) if labels is not None and labels.digest == index.header.labels else (None, None)


def save_with_labels(
    name: bytes | None, write: Write, open_index: Open[Index], labels: Labels
) -> tuple[Index, LabelIndex | None]:
    """Save an index of images, and the labels that are no class numbers; in memory without a `name`."""
    kept = keep_labels(labels, name and _next_to(name)) if labels else None
    return (save_in_memory(write, open_index) if name is None else save_index(name, write, open_index)), kept


def _next_to(name: bytes) -> bytes:
    return name.removesuffix(b".index") + b"_labels.index"
