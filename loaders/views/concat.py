"""Serves several sources as one, one after the other, with their classes merged by name."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.sources.contract import (
    BlockSource,
    FetchingSource,
    FieldSource,
    LocatedSource,
    Source,
    WindowSource,
    has_fields,
    has_targets,
    is_cache,
    is_fetching,
    is_located,
    sample_name,
)
from penstock.loaders.views.joined_names import join_names
from penstock.pipelines.errors import count_text
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import join_rows, take_rows
from penstock.pipelines.image_types import ImagePart, StoredSize, Window
from penstock.pipelines.native.rows import Names, Rows
from penstock.pipelines.targets import Targets, map_targets, parts_of

_SHOWN = 3  # sources that describe() describes


class Concat:
    """Serve the samples of several sources, those of the first first.

    Equal tuples of classes are kept as they are. Otherwise a class is a name, whichever sources have it; the names are
    sorted as those of class folders, or by value if all are numbers. So the order of the sources does not change the
    class numbers. Raises ValueError without a source.

    Attributes:
        sources: what is served.
        classes: class names, by class number.
        fingerprint, content: hex digests of those of all sources.
        skipped: reason -> number of entries that the sources skipped.
        locates: whether some of the sources locate their images.
        has_windows: whether all of them read parts of images, as caches do.
        fetches: whether some of them fetch samples ahead of their use.
        has_targets: whether all of them have labels that are no class numbers, or several named ones.
        has_fields, field_kinds: whether all of them have more than images and labels, and what that is, by name.
        label_classes: of labels that are no class numbers, the names of their classes.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ValueError("concat needs at least one source, got none")
        self.sources = tuple(sources)
        self._starts = np.cumsum([0, *map(len, self.sources)])
        self.classes = merge_classes([source.classes for source in self.sources])
        self._new_labels = [_renumber(source.classes, self.classes) for source in self.sources]
        self.fingerprint = _digest([source.fingerprint for source in self.sources])
        self.skipped: dict[str, int] = dict(sum((Counter(source.skipped) for source in self.sources), Counter()))
        self.locates = any(map(is_located, self.sources))
        self.has_windows = all(map(is_cache, self.sources))
        self.fetches = any(map(is_fetching, self.sources))
        self.has_targets = _check_targets(self.sources)
        self.field_kinds = _check_fields(self.sources)
        self.has_fields = bool(self.field_kinds)
        self.label_classes: dict[str, tuple[bytes, ...]] = getattr(self.sources[0], "label_classes", {})

    def __len__(self) -> int:
        return int(self._starts[-1])

    def refreshed(self) -> Concat:
        """Return the sources with their files as they are now."""
        now = [source.refreshed() if hasattr(source, "refreshed") else source for source in self.sources]
        return self if all(a is b for a, b in zip(now, self.sources, strict=True)) else Concat(now)

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return an encoded image, or pixels uint8 [height, width, 3]."""
        source, inner = self._place(index)
        return source.read(inner)

    def stored_size(self, index: int) -> StoredSize | None:
        """Return size and orientation of image `index`; None if it can only be read whole."""
        source, inner = self._place(index)
        return source.stored_size(inner) if isinstance(source, WindowSource) else None

    def read_window(self, index: int, window: Window) -> ImagePart:
        """Return the part of image `index` that holds `window`."""
        source, inner = self._place(index)
        assert isinstance(source, WindowSource)
        return source.read_window(inner, window)

    def will_need(self, indices: npt.NDArray[np.int64]) -> None:
        """Announce that images `indices` will be read soon."""
        for source, _, inner, _ in self._parts(indices):
            if isinstance(source, WindowSource):
                source.will_need(inner)

    @property
    def has_room(self) -> bool:
        """Whether more samples of any source may be announced."""
        return all(source.has_room for source in self.sources if isinstance(source, FetchingSource))

    def announce(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices`."""
        for source, _, inner, _ in self._parts(indices):
            if isinstance(source, FetchingSource):
                source.announce(inner)

    def can_hold(self, num_samples: int) -> bool:
        """Say whether every source that fetches has room for so many samples."""
        fetching = [source for source in self.sources if is_fetching(source)]
        return all(isinstance(source, BlockSource) and source.can_hold(num_samples) for source in fetching)

    def announce_blocks(self, indices: npt.NDArray[np.int64]) -> None:
        """Begin to fetch images `indices` long before they are read."""
        for source, _, inner, _ in self._parts(indices):
            if is_fetching(source):
                assert isinstance(source, BlockSource)
                source.announce_blocks(inner)

    def set_future(self, next_use: Callable[[Any, bool], npt.NDArray[np.int64]]) -> None:
        """Tell the sources when samples are needed next; not one that is here several times, each time with its own."""
        for source, start in zip(self.sources, self._starts.tolist(), strict=False):
            set_future = getattr(source, "set_future", None)
            if set_future is not None and sum(other is source for other in self.sources) == 1:
                set_future(lambda samples, is_past, start=start: next_use(samples + start, is_past))

    def forget(self) -> None:
        """Forget what was announced and not read."""
        for source in self.sources:
            if isinstance(source, FetchingSource):
                source.forget()

    @property
    def traffic(self) -> tuple[int, int]:
        """Requests that were answered, and the bytes that came."""
        requests, num_bytes = zip(*(getattr(source, "traffic", (0, 0)) for source in self.sources), strict=True)
        return sum(requests), sum(num_bytes)

    def locate(self, indices: npt.NDArray[np.int64], rows: Rows) -> Names:
        """Say in `rows` where images `indices` lie; those of a source that does not locate them stay ELSEWHERE."""
        parts: list[tuple[npt.NDArray[np.bool_], Rows, Names]] = []
        for source, _, inner, here in self._parts(indices):
            if is_located(source):
                assert isinstance(source, LocatedSource)
                own = rows[here]
                parts.append((here, own, source.locate(inner, own)))
        names = join_names([(own, named) for _, own, named in parts])
        for here, own, _ in parts:
            rows[here] = own
        return names

    def labels(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the class numbers (int64) of images `indices`."""
        found = np.empty(len(indices), np.int64)
        for source, number, inner, here in self._parts(indices):
            own, renumbered = source.labels(inner), self._new_labels[number]
            found[here] = own if renumbered is None else renumbered[own]
        return found

    def targets(self, indices: npt.NDArray[np.int64]) -> Targets:
        """Return the labels of images `indices`, where they are no class numbers."""
        empty = self.sources[0].targets(indices[:0])  # type: ignore[attr-defined]
        found: Targets = map_targets(lambda part: np.empty((len(indices), *part.shape[1:]), part.dtype), empty)
        for source, _, inner, here in self._parts(indices):
            own = parts_of(source.targets(inner))  # type: ignore[attr-defined]
            for name, part in parts_of(found).items():
                part[here] = own[name]
        return found

    @property
    def content(self) -> str:
        """Hex digest that covers modification times as well."""
        return _digest([getattr(source, "content", source.fingerprint) for source in self.sources])

    def fields(self, indices: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the fields of images `indices` that are no masks, by name."""
        parts, places = [], []
        for source, _, inner, here in self._parts(indices):
            assert isinstance(source, FieldSource)
            parts.append(source.fields(inner))
            places.append(np.flatnonzero(here))
        if not parts:
            return self.sources[0].fields(indices)  # type: ignore[attr-defined,no-any-return]
        order = np.argsort(np.concatenate(places))
        return {name: take_rows(join_rows([part[name] for part in parts]), order) for name in parts[0]}

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        """Return mask `name` of image `index`."""
        source, inner = self._place(index)
        assert isinstance(source, FieldSource)
        return source.mask(name, inner)

    def name(self, index: int) -> bytes:
        """Return the name of image `index` in its own source; two sources may have the same names."""
        return sample_name(*self._place(index))

    def path(self, index: int) -> bytes:
        """Return what error texts call image `index`."""
        source, inner = self._place(index)
        return source.path(inner)

    def describe(self) -> str:
        """Return one line: images, classes, and what the sources are."""
        classes = count_text(len(self.classes), "class")
        texts = [source.describe() for source in self.sources[:_SHOWN]] + ["..."] * (len(self.sources) > _SHOWN)
        return f"{len(self):,} images, {classes} in {len(self.sources):,} sources ({'; '.join(texts)})"

    def _place(self, index: int) -> tuple[Source, int]:
        """Return the source of image `index`, and its index there."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        number = int(np.searchsorted(self._starts, index, "right")) - 1
        return self.sources[number], index - int(self._starts[number])

    def _parts(self, indices: npt.NDArray[np.int64]) -> Iterator[tuple[Source, int, Any, npt.NDArray[np.bool_]]]:
        """Yield each source of images `indices`, its number, its own indices, and which of `indices` these are."""
        numbers = np.searchsorted(self._starts, indices, "right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            yield self.sources[number], number, indices[here] - self._starts[number], here


def _check_targets(sources: Sequence[Source]) -> bool:
    """Return whether sources have labels other than class numbers; raise ValueError where they differ in kind."""
    nothing = np.zeros(0, np.int64)
    kinds = {
        repr(map_targets(lambda part: (part.dtype.str, part.shape), source.targets(nothing)))
        if has_targets(source)
        else "class numbers"
        for source in sources
    }
    if len(kinds) > 1:
        raise ValueError(f"labels of joined sources must be of one kind, got {' and '.join(sorted(kinds))}")
    if kinds == {"class numbers"}:
        return False
    if any(getattr(source, "label_classes", {}) != getattr(sources[0], "label_classes", {}) for source in sources):
        raise ValueError("labels of joined sources must have the same classes in one order: pass classes= to each")
    return True


def _check_fields(sources: Sequence[Source]) -> dict[str, FieldKind]:
    """Return the fields of sources by name; raise ValueError where they differ."""
    first, *others = [source.field_kinds if has_fields(source) else {} for source in sources]
    for other in others:
        if other != first:
            differ = sorted(name for name in {**first, **other} if first.get(name) != other.get(name))
            raise ValueError(f"joined sources must have equal fields, classes included; {', '.join(differ)} differ")
    return dict(first)


def concat_sources(sources: Sequence[Source]) -> Source:
    """Return several sources as one; one alone as it is. Raises ValueError without a source."""
    return sources[0] if len(sources) == 1 else Concat(sources)


def merge_classes(of_sources: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Return the class names of all sources, by class number, as Concat describes it."""
    if len(set(of_sources)) == 1:
        return of_sources[0]
    names = sorted({name for classes in of_sources for name in classes})
    return tuple(sorted(names, key=int) if all(name.isdigit() for name in names) else names)


def _renumber(own: tuple[bytes, ...], merged: tuple[bytes, ...]) -> npt.NDArray[np.int64] | None:
    """Return the merged class number of each class number; None if they are the same."""
    number_of = {name: number for number, name in enumerate(merged)}
    return None if own == merged[: len(own)] else np.array([number_of[name] for name in own], np.int64)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(["penstock concat 1", *parts]).encode(), digest_size=32).hexdigest()
