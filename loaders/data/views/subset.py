"""Takes parts of a source, and detects reordered samples."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import SampledSource, Source, refuse_mixture, refuse_targets
from penstock.loaders.data.sources.data import Data, as_data, find_places
from penstock.loaders.data.views.subset_spec import SubsetSpec, is_slice, parse_subset
from penstock.pipelines.messages.checked import checked_int
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.plan.philox import STREAM_CLASS_LIMIT, random_words

PART_OPTIONS = ("subset", "max_per_class")  # options of open_source for every kind of data


def is_reordered(source: Source) -> bool:
    """Return whether `source` serves all samples of a data set, but in another order."""
    if not isinstance(source, Data):
        return False
    if any(step.rows is not None and _is_permuted(step.rows.array, step.num_rows) for step in source.steps):
        return True
    places: dict[str, list[npt.NDArray[np.int64]]] = defaultdict(list)  # indices per data set, in the order served
    sizes = {}
    for whole, inner in find_places(source, np.arange(len(source), dtype=np.int64)):
        places[whole.fingerprint].append(inner)
        sizes[whole.fingerprint] = len(whole)
    if any(_is_permuted(np.concatenate(own), sizes[data]) for data, own in places.items()):
        return True
    return any(map(is_reordered, source.parts))


def _is_permuted(indices: npt.NDArray[np.integer[Any]], count: int) -> bool:
    """Return whether `indices` are those of all `count` samples, in another order."""
    rows = np.arange(count)
    return not np.array_equal(indices, rows) and np.array_equal(np.sort(indices), rows)


def take_part(source: Source, subset: SubsetSpec = None, max_per_class: int | None = None) -> SampledSource:
    """Return part of a source, by options of open_source: first the subset, then at most `max_per_class` per class.

    Warns (UserWarning) of a slice that leaves out whole classes of a source sorted by class. Raises as parse_subset and
    Data.take do, and ValueError for an impossible number.
    """
    if subset is not None or max_per_class is not None:
        refuse_mixture(source, "subset=" if subset is not None else "max_per_class=")
    if subset is not None:
        indices = parse_subset(subset, len(source))
        if is_slice(subset):
            _warn_of_classes(source, indices)
        source = as_data(source).take(indices)
    if max_per_class is not None:
        source = limit_per_class(source, checked_int("max_per_class", max_per_class, 1))
    return source  # type: ignore[return-value]  # a user's own source may have no samples by number


def limit_per_class(source: Source, most: int) -> Source:
    """Return at most `most` samples of each class, in the order of the source.

    Samples are chosen by a keyed hash of their index; for a subset, of their index in the whole source. So the choice
    does not depend on other classes, and a higher limit keeps all samples that a lower one keeps.
    """
    refuse_targets(source, "max_per_class")
    places = np.arange(len(source), dtype=np.int64)
    labels = source.labels(places)
    numbers = source.indices.astype(np.int64) if isinstance(source, Data) else places
    words = random_words(0, 0, numbers, STREAM_CLASS_LIMIT, 2)
    order = np.lexsort((words[:, 1], words[:, 0], labels))
    begins = np.searchsorted(labels[order], labels[order])  # the start of each sample's class
    kept = np.sort(order[places - begins < most])
    return source if len(kept) == len(source) else as_data(source).take(kept)


def _warn_of_classes(source: Source, indices: npt.NDArray[np.int64]) -> None:
    labels = source.labels(np.arange(len(source), dtype=np.int64))
    if not len(indices) or np.any(labels[1:] < labels[:-1]):
        return
    whole, part = len(np.unique(labels)), len(np.unique(labels[indices]))
    if part < whole:
        warn_user(
            f"this subset leaves out {whole - part:,} of {whole:,} classes, because the samples are sorted by class: "
            "split(source, 0.9, by_class=True) cuts within each class",
            UserWarning,
        )
