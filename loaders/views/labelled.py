"""Serves the images of a source with labels of any kind, which the workers never see."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import Source, sample_name
from penstock.loaders.sources.view import View
from penstock.loaders.system.shared_memory import SharedArray
from penstock.loaders.views.label_values import LabelValues, check_labels
from penstock.pipelines.checked import shown
from penstock.pipelines.errors import printable
from penstock.pipelines.targets import Targets

_ONE = ""  # the name of labels that have none


class Labelled(View):
    """Serve the images of a source, in its order, with labels of its own.

    Class numbers replace those of the source. All other labels are targets: the loader looks them up by index when it
    hands a batch out, so caches and workers hold images only.

    Args:
        of: name -> labels; one alone may have the name "".
    """

    def __init__(self, source: Source, of: Mapping[str, LabelValues]) -> None:
        digest = hashlib.blake2b(b"penstock labels 1", digest_size=16)
        self._shared: dict[str, SharedArray] = {}
        for name, (values, classes) in sorted(of.items()):
            digest.update(repr((name, values.dtype.str, values.shape, classes)).encode())
            digest.update(np.ascontiguousarray(values).data)
            shared = self._shared[name] = SharedArray.create(values.shape, values.dtype, name="penstock-labels")
            shared.array[...] = values
        single = of.get(_ONE)
        self._classes = None if single is None or not single.classes else single.classes
        self._replaces_classes = single is not None and single.are_classes
        super().__init__(source, len(source), f"with labels {digest.hexdigest()}")

    def _show(self, source: Source) -> None:
        super()._show(source)
        self.has_targets = not self._replaces_classes
        if self._classes is not None:
            self.classes = self._classes

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices`; 0 where labels are no class numbers."""
        if self._replaces_classes:
            return self._shared[_ONE].array[indices]
        return np.zeros(len(indices), np.int64)

    def targets(self, indices: npt.NDArray[np.int64]) -> Targets:
        """Return the labels of images `indices`: one array, or a dict of them by name."""
        of = {name: shared.array[indices] for name, shared in self._shared.items()}
        return of[_ONE] if list(of) == [_ONE] else of

    def describe(self) -> str:
        """Describe the data in one line."""
        return f"{self.source.describe()}, with {'other labels' if _ONE in self._shared else ', '.join(self._shared)}"


def label_source(source: Source, labels: Any, classes: Sequence[str | bytes] | None = None) -> Labelled:
    """Return `source` with other labels, as with_labels takes them. Raises ValueError."""
    if isinstance(labels, Mapping) and not all(hasattr(column, "__len__") for column in labels.values()):
        raise ValueError("labels must be one per sample, a dict of such, or a function of a sample's name")
    if callable(labels):
        labels = [_call(labels, source, index) for index in range(len(source))]
    if not isinstance(labels, Mapping):
        return Labelled(source, {_ONE: check_labels(labels, len(source), classes)})
    if classes is not None:
        raise ValueError("classes must come with one label per sample, not with several named ones")
    if not labels or not all(isinstance(name, str) and name for name in labels):
        raise ValueError(f"labels must have names that are strings, got {shown(list(labels))}")
    return Labelled(source, {name: _check_named(name, column, len(source)) for name, column in labels.items()})


def _check_named(name: str, column: Any, num_samples: int) -> LabelValues:
    try:
        return check_labels(column, num_samples)
    except ValueError as error:
        raise ValueError(f"labels[{name!r}]: {error}") from None


def _call(labels: Callable[[str], Any], source: Source, index: int) -> Any:
    name = sample_name(source, index).decode("utf-8", "surrogateescape")
    try:
        return labels(name)
    except Exception as error:
        raise ValueError(
            f"labels raised {type(error).__name__} for sample {index} ({printable(name)}): {error}"
        ) from error
