"""Checks labels that users pass as arrays or lists, one per sample: class numbers, numbers, vectors, sets of names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.arrays import name_classes
from penstock.pipelines.checked import shown

_MAX_CLASS = 2**31


class LabelValues(NamedTuple):
    """Hold one label per sample.

    Attributes:
        values: int64 [n] of class numbers, float32 [n], or float32 [n, k].
        classes: what the class numbers, or the k elements, are called; empty where these have no names.
    """

    values: npt.NDArray[Any]
    classes: tuple[bytes, ...]

    @property
    def are_classes(self) -> bool:
        """Whether the labels are class numbers."""
        return self.values.dtype == np.int64


def check_labels(labels: Any, num_samples: int, classes: Sequence[str | bytes] | None = None) -> LabelValues:
    """Return labels as they are served.

    Integers and booleans [n] are class numbers; floats [n] are kept, as float32; numbers [n, k] become float32 vectors,
    such as several classes at once or soft labels; strings [n] are class names, and collections of strings are sets of
    them, float32 [n, k] with 1 for the names in the set. `classes` names the class numbers or elements. Raises
    ValueError.
    """
    names = None if classes is None else tuple(map(os.fsencode, classes))
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu()
    if not hasattr(labels, "__len__") or len(labels) != num_samples:
        raise ValueError(f"labels must be one per sample ({num_samples:,}), got {_count(labels)}")
    first = labels[0] if isinstance(labels, Sequence) else None
    if isinstance(first, (str, bytes)):
        return _number_names(labels, names)
    if isinstance(first, Collection) and any(isinstance(name, (str, bytes)) for label in labels for name in label):
        return _number_sets(labels, names)
    try:
        values = np.asarray(labels)
    except ValueError:
        raise ValueError("labels must be one number or vector per sample, got vectors of several lengths") from None
    if values.dtype.kind in "US":
        return _number_names(values.tolist(), names)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2) or 0 in values.shape:
        raise ValueError(
            f"labels must be numbers of shape [n] or [n, k], names, or sets of names, got {values.dtype} "
            f"{list(values.shape)}"
        )
    if values.ndim == 1 and values.dtype.kind != "f":
        return _check_classes(values, names)
    return _check_floats(values, names or ())


def _check_classes(values: npt.NDArray[Any], names: tuple[bytes, ...] | None) -> LabelValues:
    wrong = np.flatnonzero((values < 0) | (values >= _MAX_CLASS))
    if len(wrong):
        raise ValueError(
            f"class numbers must be at least 0 (-1 is reserved for padding), got {values[wrong[0]]} for sample "
            f"{wrong[0]}; numbers that are no classes must be floats"
        )
    return LabelValues(values.astype(np.int64), name_classes(names, int(values.max()) + 1))


def _check_floats(values: npt.NDArray[Any], names: tuple[bytes, ...]) -> LabelValues:
    floats = values.astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(floats.reshape(len(floats), -1)).all(1))
    if len(wrong):
        raise ValueError(f"labels must be finite numbers, got {shown(values[wrong[0]].tolist())} for sample {wrong[0]}")
    if names and (floats.ndim == 1 or len(names) != floats.shape[1]):
        raise ValueError(f"classes must name each element of a label, got {len(names)} names for {list(floats.shape)}")
    return LabelValues(floats, names)


def _number_names(labels: Iterable[Any], names: tuple[bytes, ...] | None) -> LabelValues:
    own = [os.fsencode(label) for label in labels]
    known = tuple(sorted(set(own))) if names is None else names
    return LabelValues(np.array(_find_numbers(own, known), np.int64), known)


def _number_sets(labels: Sequence[Any], names: tuple[bytes, ...] | None) -> LabelValues:
    own = [[os.fsencode(name) for name in label] for label in labels]
    known = tuple(sorted({name for label in own for name in label})) if names is None else names
    numbers = _find_numbers([name for label in own for name in label], known)
    values = np.zeros((len(own), len(known)), np.float32)
    values[np.repeat(np.arange(len(own)), list(map(len, own))), numbers] = 1
    return LabelValues(values, known)


def _find_numbers(labels: Sequence[bytes], names: tuple[bytes, ...]) -> list[int]:
    """Return the number of each label among `names`. Raises ValueError."""
    number_of = {name: number for number, name in enumerate(names)}
    if len(number_of) < len(names):
        raise ValueError("classes must be distinct where labels are names, and a name occurs twice")
    try:
        return [number_of[label] for label in labels]
    except KeyError as error:
        raise ValueError(f"label {shown(os.fsdecode(error.args[0]))} is not one of classes: add it") from None


def _count(labels: Any) -> str:
    return f"{len(labels):,}" if hasattr(labels, "__len__") else shown(labels)


def are_targets(labels: Any) -> bool:
    """Return whether labels are something else than class numbers: floats, vectors, names, or a dict of labels."""
    if isinstance(labels, dict):
        return True
    if hasattr(labels, "detach"):
        return bool(labels.is_floating_point()) or labels.dim() > 1
    if isinstance(labels, np.ndarray):
        return labels.dtype.kind not in "iub" or labels.ndim > 1
    return isinstance(labels, (list, tuple)) and any(not isinstance(label, (int, np.integer)) for label in labels[:1])
