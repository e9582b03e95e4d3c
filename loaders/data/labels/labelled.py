"""Adds labels of any kind to the images of a source; workers never see these labels."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sized
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.labels.class_names import warn_of_classes
from penstock.loaders.data.labels.class_numbers import Classes, checked_classes, checked_classes_by_label
from penstock.loaders.data.labels.conflicts import find_conflicts
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.label_text import is_number
from penstock.loaders.data.labels.stored_labels import ALONE, NOT_CLASSES, Labels, keep_labels
from penstock.loaders.data.samples.columns import SavedColumns, StoredValues
from penstock.loaders.data.samples.samples_writer import CHUNK
from penstock.loaders.data.samples.saved_texts import SavedTexts
from penstock.loaders.data.sources.contract import Source, field_kinds_of, has_labels, has_targets
from penstock.loaders.data.sources.data import Data, as_data
from penstock.loaders.data.sources.source_faults import call_by_name
from penstock.loaders.data.sources.step import Field, Step
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

_NO_LABEL = "give every sample a label, or select the labelled ones with subset="


def serve_labels(source: Source, index: SavedColumns | None, *, has_list: bool = True) -> Source:
    """Return `source` with the labels and texts in `index`, if there is one.

    Warn of classes that are unlikely to be meant, unless the user listed the classes (`has_list`).
    """
    served = source
    if index is not None and SavedTexts.is_in(index):
        texts = SavedTexts(index)
        fields = {"text": Field(texts.kind, texts)}  # a cache stores fields, so they are added before labels
        served = as_data(served).add(Step(f"with text {index.identity}", after=", with text", fields=fields))
    if index is not None and index.labels:
        names = ", ".join(filter(None, index.labels))
        after = f", with {f'labels {names}' if names else 'other labels'}"
        served = as_data(served).add(Step(f"with labels {index.identity}", after=after, labels=index))
    if not has_list and index is not None and index.labels:
        for name, (values, classes) in index.labels.items():
            numbers = partial(np.asarray, values) if values.dtype == np.int32 else None
            warn_of_classes(classes, len(values), numbers, name=name)
    elif not has_list:
        warn_of_classes(served.classes, len(served), partial(_all_labels, served))
    return served


def find_saved_labels(source: Any) -> SavedColumns | None:
    """Return the labels and texts that serve_labels added to a source."""
    for step in source.steps if isinstance(source, Data) else ():
        texts = [each.column for each in (step.fields or {}).values() if isinstance(each.column, SavedTexts)]
        if step.labels is not None or texts:
            return step.labels if step.labels is not None else texts[0].index
    return find_saved_labels(source.parts[0]) if isinstance(source, Data) else None


def _all_labels(source: Source) -> npt.NDArray[np.int64]:
    return source.labels(np.arange(len(source)))


def warn_of_lost_labels(source: Source) -> None:
    """Warn of a cache if its source's labels are not class numbers: they are not in the cache."""
    if source.classes == (NOT_CLASSES,) and not has_targets(source):
        warn_user(
            "these labels are not class numbers, and caches store class numbers only: pass the source of the cache "
            "with cache=..., or with_labels(cache, labels)",
        )


def warn_of_no_labels(source: Source) -> None:
    """Warn of data without labels and texts: all images are in one class."""
    if not has_labels(source) and "text" not in field_kinds_of(source):
        warn_user(
            "the data has no labels, so all labels are 0: set the place of the labels with label=, pass (path, label) "
            "for each image, or use with_labels(source, labels); for texts such as captions, set their place with "
            "text=, such as text='txt' or a column",
        )


def are_targets(labels: object) -> bool:
    """Return whether labels are not class numbers: floats, vectors, names, or a dict of labels."""
    if isinstance(labels, dict):
        return True
    if isinstance(labels, (list, tuple)):
        return any(not isinstance(label, (int, np.integer)) or isinstance(label, bool) for label in labels)
    array = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    return array.dtype.kind not in "iu" or array.ndim > 1 or bool(np.ma.is_masked(labels))


def count_labels(labels: object) -> int | None:
    """Return the number of labels passed to with_labels; None for a function or columns of different lengths."""
    if isinstance(labels, Mapping):
        counts = set(map(count_labels, labels.values()))
        return counts.pop() if len(counts) == 1 else None
    return len(labels) if isinstance(labels, Sized) and not isinstance(labels, (str, bytes)) else None


def names_numbers(classes: object) -> bool:
    """Return whether the option `classes` has names that are numbers; number labels are then looked up in it."""
    return any(is_number(os.fsdecode(name)) for name in checked_classes(classes) or ())


def label_source(source: Source, labels: Any, classes: object = None) -> Source:
    """Return `source` with other labels, as with_labels accepts them. Raises ValueError."""
    listed = checked_classes_by_label(classes)
    if isinstance(labels, Mapping) and not all(hasattr(column, "__len__") for column in labels.values()):
        raise ValueError("labels must be one per sample, a dict of such labels, or a function of a sample's name")
    if callable(labels):
        labels = call_by_name(source, labels, "labels")
    if not isinstance(labels, Mapping):
        return _serve_new(source, read_labels(labels, len(source), listed), has_list=listed is not None)
    if not labels or not all(isinstance(name, str) and name for name in labels):
        raise ValueError(f"labels must have names that are strings, got {shown(list(labels))}")
    of = {} if listed is None else listed
    if not isinstance(of, Mapping) or not of.keys() <= labels.keys():
        raise ValueError("classes for several labels must be a dict by the labels' names")
    named = {name: _read_named(name, labels[name], len(source), of) for name in labels}
    return _serve_new(source, named, has_list=listed is not None)


def _serve_new(source: Source, labels: Labels, *, has_list: bool) -> Source:
    """Return `source` with new labels. Warn of files that a list contains several times, with different labels."""
    if isinstance(source, IndexedSource) and not source.samples.has_ranges and not any(source.samples.folder_stamps()):
        names, hashes = source.samples.container_names, array("q")
        for first in range(0, len(source), CHUNK):
            hashes.extend(map(hash, names(np.arange(first, min(first + CHUNK, len(source))))))
        find_conflicts(hashes, labels, source.path).warn()
    return serve_labels(source, keep_labels(labels), has_list=has_list)


def read_labels(labels: Any, num_samples: int, classes: Classes = None) -> Labels:
    """Return labels in their stored form, one per sample, or several by name if each is a dict. Raises ValueError."""
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu()
    if np.ma.is_masked(labels):
        labels = labels.tolist()  # None for masked values
    if isinstance(labels, (str, bytes)):
        fix = "open a table of paths and labels as a source"
        raise ValueError(f"labels must be one per sample, got {shown(labels)}: {fix}")
    if not hasattr(labels, "__len__") or len(labels) != num_samples:
        count = f"{len(labels):,}" if hasattr(labels, "__len__") else shown(labels)
        raise ValueError(f"labels must be one per sample ({num_samples:,}), got {count}")
    rows = LabelRows(classes, fix=_NO_LABEL)
    rows.declare_categories({ALONE: labels})
    if not isinstance(labels, (list, tuple)):
        array = np.asarray(labels)
        if array.ndim not in (1, 2) or 0 in array.shape:
            raise ValueError(f"labels must be of shape [n] or [n, k], got {list(array.shape)}")
        if array.dtype.kind in "biuf":
            return {ALONE: _read_array(array, classes)}
        labels = array.tolist()
    for number, label in enumerate(labels):
        rows.add(label, _fail, number)
    return rows.finish()


def _read_array(values: npt.NDArray[np.number], classes: Classes) -> StoredValues:
    rows = LabelRows(classes, fix=_NO_LABEL)
    column, there = rows.column(), ~np.isnan(values) if values.ndim == 1 else np.ones(len(values), bool)
    column.begin(there, _fail, np.arange(len(values)))
    if values.ndim == 2 or values.dtype.kind == "f":
        column.add_numbers(values[there])
    else:
        found, codes = np.unique(values, return_inverse=True)
        column.add_coded(found.tolist(), codes)
    return rows.finish()[ALONE]


def _read_named(
    name: str, column: Any, num_samples: int, classes: Mapping[str, tuple[bytes, ...] | None]
) -> StoredValues:
    try:
        of = read_labels(column, num_samples, classes.get(name))
        if list(of) != [ALONE]:
            raise ValueError("labels must not be dicts of dicts")
    except ValueError as error:
        raise ValueError(f"labels[{name!r}]: {error}") from None
    return of[ALONE]


def _fail(row: int, cause: str, fix: str | None = None) -> ValueError:
    """Return the error for a sample's label."""
    return ValueError(f"sample {row}: {cause}{f': {fix}' if fix else ''}")
