"""Serves samples of another source under other numbers: the base of subsets, splits and repetitions."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import (
    BlockSource,
    FetchingSource,
    FieldSource,
    LocatedSource,
    Source,
    TargetSource,
    WindowSource,
    has_fields,
    has_targets,
    is_cache,
    is_fetching,
    is_located,
    sample_name,
)
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.image_types import ImagePart, StoredSize, Window
from penstock.pipelines.native.rows import Names, Rows
from penstock.pipelines.targets import Targets

Index = TypeVar("Index", int, npt.NDArray[np.int64])


class View:
    """Serve samples of another source; subclasses override `_at`, which maps an index to one of its samples.

    Attributes:
        source: the source whose samples are served.
        classes, skipped: those of `source`.
        fingerprint: hex digest of that of `source` and of how it is viewed.
        locates: whether `source` says where its images lie.
        has_windows: whether `source` reads parts of images, as a cache does.
        fetches: whether `source` fetches samples ahead of their use.
        has_targets: whether the labels of `source` are no class numbers, or several named ones.
        has_fields, field_kinds: whether `source` has more than images and labels, and what that is, by name.
        label_classes: of labels that are no class numbers, by name ("" for one alone), the names of their classes.
    """

    def __init__(self, source: Source, num_samples: int, viewing: str) -> None:
        """Serve `num_samples` of `source`. viewing: words for how, which go into the fingerprint."""
        self._num_samples, self._viewing = num_samples, viewing
        self._show(source)

    def _show(self, source: Source) -> None:
        self.source = source
        self.classes, self.skipped = source.classes, source.skipped
        self.fingerprint = self._digest(source.fingerprint)
        self.locates, self.has_windows, self.fetches = is_located(source), is_cache(source), is_fetching(source)
        self.has_targets, self.has_fields = has_targets(source), has_fields(source)
        self.field_kinds: dict[str, FieldKind] = dict(source.field_kinds) if has_fields(source) else {}
        self.label_classes: dict[str, tuple[bytes, ...]] = getattr(source, "label_classes", {})

    @property
    def content(self) -> str:
        """Hex digest that covers modification times as well."""
        return self._digest(getattr(self.source, "content", self.source.fingerprint))

    @property
    def is_cached_whole(self) -> bool:
        """Whether a cache is made of this view, not of the source that it shows."""
        return False

    def _digest(self, of_source: str) -> str:
        return hashlib.blake2b(f"{of_source} {self._viewing}".encode(), digest_size=32).hexdigest()

    @property
    def root(self) -> bytes:
        """The folder of the source; there is no such attribute if the source has none."""
        root: bytes = self.source.root  # type: ignore[attr-defined]
        return root

    def over(self, source: Source) -> View:
        """Return the same view of another source that holds the same samples, such as a cache of this one."""
        view = copy.copy(self)
        view._show(source)
        return view

    def refreshed(self) -> View:
        """Return this view of the files as they are now. Raises LoaderError E-CHANGED if they are other images."""
        refresh: Callable[[], Source] | None = getattr(self.source, "refreshed", None)
        now = self.source if refresh is None else refresh()
        if now.fingerprint != self.source.fingerprint:
            cause = "images were added, removed or changed since a part of them was chosen"
            raise LoaderError("E-CHANGED", cause, path=getattr(self, "root", None))
        return self if now is self.source else self.over(now)

    def _at(self, index: Index) -> Index:
        """Return the source's index of sample `index`; for an int64 array, of each of its elements."""
        return index

    def indices_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the source's indices of images `indices` (both int64 [n])."""
        return self._at(indices)

    def __len__(self) -> int:
        return self._num_samples

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or pixels uint8 [height, width, 3]."""
        return self.source.read(self._at(index))

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Say in `rows` where images `indices` lie, for the native library."""
        assert isinstance(self.source, LocatedSource)
        return self.source.locate(self._at(indices), rows)

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Announce that images `indices` will be read soon."""
        if isinstance(self.source, WindowSource):
            self.source.will_need(self._at(indices))

    @property
    def has_room(self) -> bool:
        """Whether more samples may be announced."""
        return isinstance(self.source, FetchingSource) and self.source.has_room

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices`."""
        if isinstance(self.source, FetchingSource):
            self.source.announce(self._at(indices))

    def can_hold(self, num_samples: int) -> bool:
        """Say whether so many samples may be announced before they are needed."""
        return isinstance(self.source, BlockSource) and self.source.can_hold(num_samples)

    def announce_blocks(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` long before they are read."""
        assert isinstance(self.source, BlockSource)
        self.source.announce_blocks(self._at(indices))

    def forget(self) -> None:
        """Forget what was announced and not read."""
        if isinstance(self.source, FetchingSource):
            self.source.forget()

    @property
    def traffic(self) -> tuple[int, int]:
        """Requests that were answered, and the bytes that came."""
        return getattr(self.source, "traffic", (0, 0))

    def stored_size(self, index: int) -> StoredSize | None:
        """Return size and orientation of image `index`; None if it can only be read whole."""
        return self.source.stored_size(self._at(index)) if isinstance(self.source, WindowSource) else None

    def read_window(self, index: int, window: Window) -> ImagePart:
        """Return the part of image `index` that holds `window`."""
        assert isinstance(self.source, WindowSource)
        return self.source.read_window(self._at(index), window)

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices`."""
        return self.source.labels(self._at(indices))

    def targets(self, indices: npt.NDArray[np.int64]) -> Targets:
        """Return the labels of images `indices`, where they are no class numbers."""
        assert isinstance(self.source, TargetSource)
        return self.source.targets(self._at(indices))

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` that are no masks, by name."""
        assert isinstance(self.source, FieldSource)
        return self.source.fields(self._at(indices))

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        """Return mask `name` of image `index`."""
        assert isinstance(self.source, FieldSource)
        return self.source.mask(name, self._at(index))

    def path(self, index: int) -> bytes:
        """Return what error texts call image `index`."""
        return self.source.path(self._at(index))

    def name(self, index: int) -> bytes:
        """Return the name of image `index`, as sample_name defines it."""
        return sample_name(self.source, self._at(index))

    def describe(self) -> str:
        """Describe the data in one line."""
        return self.source.describe()
