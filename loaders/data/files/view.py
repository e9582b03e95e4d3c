"""Serves samples of other sources under other numbers: the base of subsets, splits, repetitions and joined sources."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.contract import (
    BlockSource,
    Source,
    WindowSource,
    has_fields,
    has_targets,
    is_cache,
    is_fetching,
    is_located,
    refuse_mixture,
    sample_name,
)
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.image_types import ImagePart, StoredSize, Window
from penstock.pipelines.native.rows import Names, Rows
from penstock.pipelines.targets import Targets

Indices = npt.NDArray[np.int64]
Index = TypeVar("Index", int, Indices)


class OverSources:
    """Serve samples of other sources; what reads and fetches them is here, by the protocols in contract.py.

    Subclasses say where a sample is.

    Attributes:
        sources: those whose samples are served.
        locates: whether some of them say where their images lie.
        has_windows: whether all of them read parts of images, as caches do.
        fetches: whether some of them fetch samples ahead of their use.
        has_targets: whether the labels are no class numbers, or several named ones.
        has_fields, field_kinds: whether there is more than images and labels, and what that is, by name.
        label_classes: of labels that are no class numbers, by name ("" for one alone), the names of their classes.
    """

    has_targets: bool
    has_fields: bool
    field_kinds: dict[str, FieldKind]

    def _read_from(self, sources: Sequence[Source]) -> None:
        self.sources: tuple[Any, ...] = tuple(sources)
        self.locates, self.has_windows = any(map(is_located, sources)), all(map(is_cache, sources))
        self._fetching = [source for source in self.sources if is_fetching(source)]  # asked once: it takes 50 us
        self._windowed = [source for source in self.sources if isinstance(source, WindowSource)]
        self.fetches = bool(self._fetching)
        self.label_classes: dict[str, tuple[bytes, ...]] = getattr(sources[0], "label_classes", {})

    def _place(self, index: int) -> tuple[Any, int]:
        """Return the source of sample `index`, and its index there."""
        raise NotImplementedError

    def parts(self, indices: Indices) -> Iterator[tuple[Any, Indices]]:
        """Yield each source of samples `indices`, and its own indices."""
        raise NotImplementedError

    def _parts_in(self, some: list[Any], indices: Indices) -> Iterator[tuple[Any, Indices]]:
        return (part for part in self.parts(indices) if any(part[0] is source for source in some))

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        source, inner = self._place(index)
        return source.read(inner)  # type: ignore[no-any-return]

    def stored_size(self, index: int) -> StoredSize | None:
        source, inner = self._place(index)
        return source.stored_size(inner) if any(source is other for other in self._windowed) else None

    def read_window(self, index: int, window: Window) -> ImagePart:
        source, inner = self._place(index)
        return source.read_window(inner, window)  # type: ignore[no-any-return]

    def will_need(self, indices: Indices) -> None:
        for source, inner in self._parts_in(self._windowed, indices):
            source.will_need(inner)

    @property
    def has_room(self) -> bool:
        return all(source.has_room for source in self._fetching)

    def announce(self, indices: Indices) -> None:
        for source, inner in self._parts_in(self._fetching, indices):
            source.announce(inner)

    def make_room(self, num_samples: int) -> bool:
        return all(isinstance(source, BlockSource) and source.make_room(num_samples) for source in self._fetching)

    def announce_blocks(self, indices: Indices) -> None:
        for source, inner in self._parts_in(self._fetching, indices):
            source.announce_blocks(inner)

    def forget(self) -> None:
        for source in self._fetching:
            source.forget()

    @property
    def traffic(self) -> tuple[int, int]:
        """Requests that were answered, and the bytes that came."""
        requests, num_bytes = zip(*(getattr(source, "traffic", (0, 0)) for source in self.sources), strict=True)
        return sum(requests), sum(num_bytes)

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        source, inner = self._place(index)
        return source.mask(name, inner)  # type: ignore[no-any-return]

    def field_path(self, name: str, index: int) -> bytes | None:
        """Return the path of the file that holds field `name` of image `index`; None if it lies in none of its own."""
        source, inner = self._place(index)
        find = getattr(source, "field_path", None)
        return None if find is None else find(name, inner)

    def name(self, index: int) -> bytes:
        """Return the name of image `index` in its own source, as sample_name defines it."""
        return sample_name(*self._place(index))

    def path(self, index: int) -> bytes:
        source, inner = self._place(index)
        return source.path(inner)  # type: ignore[no-any-return]


class View(OverSources):
    """Serve samples of another source; subclasses override `_at`, which maps an index to one of its samples.

    Attributes:
        source: the source whose samples are served.
        classes, skipped: those of `source`.
        fingerprint: hex digest of that of `source` and of how it is viewed.
        keeps_order: whether sample i is sample i of `source`, so that the shares of a mix(...) still hold.
    """

    keeps_order = False

    def __init__(self, source: Source, num_samples: int, viewing: str) -> None:
        """Serve `num_samples` of `source`. viewing: words for how, which go into the fingerprint."""
        self._num_samples, self._viewing = num_samples, viewing
        self._show(source)

    def _show(self, source: Source) -> None:
        if not self.keeps_order:
            refuse_mixture(source, "a part of the data (subset, max_per_class, split)")
        self.source = source
        self._read_from([source])
        self.classes, self.skipped = source.classes, source.skipped
        self.fingerprint = self._digest(source.fingerprint)
        self.has_targets, self.has_fields = has_targets(source), has_fields(source)
        self.field_kinds = dict(source.field_kinds) if has_fields(source) else {}

    @property
    def mixture(self) -> Any:
        """Names, sizes and shares of the source if it is a mix(...), whose order this view keeps; else None."""
        return getattr(self.source, "mixture", None)

    def count_sources(self, indices: Indices) -> dict[str, int]:
        """Return name -> how many of images `indices` are of that source of the mix(...) that is viewed."""
        return self.source.count_sources(indices)  # type: ignore[attr-defined,no-any-return]

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

    def _place(self, index: int) -> tuple[Any, int]:
        return self.source, self._at(index)

    def parts(self, indices: Indices) -> Iterator[tuple[Any, Indices]]:
        yield self.source, self._at(indices)

    def __len__(self) -> int:
        return self._num_samples

    def locate(self, indices: Indices, rows: Rows) -> Names:
        return self.source.locate(self._at(indices), rows)  # type: ignore[attr-defined,no-any-return]

    def labels(self, indices: Indices) -> Indices:
        return self.source.labels(self._at(indices))

    def targets(self, indices: Indices) -> Targets:
        return self.source.targets(self._at(indices))  # type: ignore[attr-defined,no-any-return]

    def fields(self, indices: Indices) -> dict[str, Any]:
        return self.source.fields(self._at(indices))  # type: ignore[attr-defined,no-any-return]

    def describe(self) -> str:
        return self.source.describe()


def find_whole(source: Source) -> list[Source]:
    """Return the data sets, each whole and once, whose samples `source` shows: one for a subset or a split."""
    if not isinstance(source, OverSources):
        return [source]
    found = [whole for each in source.sources for whole in find_whole(each)]
    return [each for number, each in enumerate(found) if not any(each is other for other in found[:number])]
