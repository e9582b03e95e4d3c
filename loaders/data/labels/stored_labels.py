"""Labels of all samples: class numbers, numbers, vectors, or sets of classes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.class_numbers import ONE_CLASS

ALONE = ""  # the name of labels that have none
# The class of all images whose labels are of another kind: a cache, which holds class numbers, keeps this name.
NOT_CLASSES = b"(labels are not classes)"


class LabelValues(NamedTuple):
    """Hold one label per sample.

    Attributes:
        values: int32 [n] of class numbers; float32 [n] or [n, k]; or uint8 [n, k / 8], sets of k classes, a bit each.
        classes: what the class numbers, or the k elements, are called; empty where these have no names.
    """

    values: npt.NDArray[Any]
    classes: tuple[bytes, ...] = ()

    @property
    def are_classes(self) -> bool:
        """Whether the labels are class numbers."""
        return self.values.dtype == np.int32

    def serve(self, indices: Any) -> npt.NDArray[Any]:
        """Return the labels of samples `indices`: int64 [b], or float32 [b] or [b, k], of sets 1 for each member."""
        found: npt.NDArray[Any] = self.values[indices]
        if self.values.dtype == np.uint8:
            return np.unpackbits(found, axis=-1, count=len(self.classes)).astype(np.float32)
        return found.astype(np.int64) if self.are_classes else found

    def take(self, indices: npt.NDArray[np.int64]) -> LabelValues:
        """Return the labels of samples `indices`."""
        return self._replace(values=self.values[indices])


Labels = Mapping[str, LabelValues]  # by name; those that have no name are ALONE


def pack_sets(
    numbers: npt.NDArray[np.int32], sample_of: npt.NDArray[np.int64], num_samples: int, classes: tuple[bytes, ...]
) -> LabelValues:
    """Return sets of classes: class `numbers`, each with the sample whose set it is in (both [m])."""
    values = np.zeros((num_samples, -(-len(classes) // 8)), np.uint8)
    np.bitwise_or.at(values, (sample_of, numbers >> 3), (128 >> (numbers & 7)).astype(np.uint8))
    return LabelValues(values, classes)


def split_classes(labels: Labels, num_samples: int) -> tuple[npt.NDArray[np.int32], tuple[bytes, ...], Labels]:
    """Return class numbers (int32 [n]), class names, and labels of other kinds, which have one class number, 0.

    An index of images holds class numbers; a LabelIndex next to it holds the others. No labels are one class.
    """
    alone = labels.get(ALONE)
    if alone is not None and alone.are_classes:
        return alone.values, alone.classes, {}
    return np.zeros(num_samples, np.int32), (NOT_CLASSES if labels else ONE_CLASS,), labels


def digest_labels(labels: Labels) -> str:
    """Return a hex digest of labels and of what their classes are called."""
    digest = hashlib.blake2b(b"penstock labels 2", digest_size=16)
    for name, (values, classes) in sorted(labels.items()):
        digest.update(repr((name, values.dtype.str, values.shape, classes)).encode())
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
