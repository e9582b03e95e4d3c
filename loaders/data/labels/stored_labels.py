"""Labels of all samples: class numbers, numbers, vectors, or sets of classes, stored next to an index of images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import OTHER, SavedColumns, StoredValues, save_columns
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.sources.contract import ONE_CLASS

ALONE = ""  # the name of unnamed labels
# The class of all images if labels are not class numbers; a cache, which stores class numbers only, keeps this name.
NOT_CLASSES = b"(labels are not classes)"
Labels = Mapping[str, StoredValues]  # by name; ALONE for unnamed labels


def split_classes(labels: Labels, num_samples: int) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...], Labels]:
    """Return class numbers (int32 [n]), class names, and other columns: texts, and labels of other kinds.

    Labels of other kinds have the class number 0. An index of images contains class numbers; SavedColumns next to it
    contain the other columns. No labels give one class.
    """
    alone = labels.get(ALONE)
    if alone is not None and alone.are_classes:
        return alone.values, alone.classes, {name: of for name, of in labels.items() if name != ALONE}
    return np.zeros(num_samples, np.int32), (NOT_CLASSES if has_labels(labels) else ONE_CLASS,), labels


def has_labels(columns: Labels) -> bool:
    """Return whether some of the columns of rows are labels: others are texts."""
    return not all(name.startswith(OTHER) for name in columns)


def take_labels(writer: SamplesWriter, labels: Labels, kept: npt.NDArray[np.int64]) -> Labels:
    """Keep the samples `kept` (int64 [n]) of an index, with `labels`; return the labels that are not class numbers."""
    writer.labels, classes, others = split_classes(labels, len(kept))
    writer.classes = list(classes)
    writer.keep(kept)
    return others


def keep_labels(labels: Labels, name: bytes | None = None) -> SavedColumns:
    """Write labels to a file in the user's cache folder, or to memory without a `name`, and map it."""
    digest = hashlib.blake2b(b"penstock labels 2", digest_size=16)
    for called, (values, classes) in sorted(labels.items()):
        digest.update(repr((called, values.dtype.str, values.shape, classes)).encode())
        digest.update(np.ascontiguousarray(values).data)
    return save_columns(labels, digest.hexdigest(), name)


def save_with_labels(name: bytes | None, writer: SamplesWriter, labels: Labels) -> tuple[Samples, SavedColumns | None]:
    """Save an index of samples, and the labels that are not class numbers; in memory without a `name`."""
    kept = keep_labels(labels, name and next_to(name)) if labels else None
    writer.labels_digest = "" if kept is None else kept.identity
    return writer.save(name), kept


def next_to(name: bytes) -> bytes:
    """Return the name of the label file of the saved index `name`."""
    return name.removesuffix(b".index") + b"_labels.index"
