"""Serves several sources as one, one after the other, with their classes merged by name."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.contract import Source, has_fields, has_targets, is_located, refuse_mixture
from penstock.loaders.data.files.folder_scan import FLAT_CLASS
from penstock.loaders.data.files.view import Indices, OverSources
from penstock.pipelines.errors import count_text
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.fields.ragged import join_rows, take_rows
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.native.rows import FILE, NO_NAMES, Names, Rows
from penstock.pipelines.targets import Targets, map_targets, parts_of

_SHOWN = 3  # sources that describe() describes


class Concat(OverSources):
    """Serve the samples of several sources, those of the first first.

    Equal tuples of classes are kept as they are. Otherwise a class is a name, whichever sources have it; the names are
    sorted as those of class folders, or by value if all are numbers. So the order of the sources does not change the
    class numbers. Raises ValueError without a source, and for a mixture among several.

    Attributes:
        classes: class names, by class number.
        fingerprint, content: hex digests of those of all sources.
        skipped: reason -> number of entries that the sources skipped.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ValueError("concat needs at least one source, got none")
        for source in sources:
            refuse_mixture(source, "concat, another mix or a list", "pass all sources and their shares to one mix(...)")
        self._read_from(sources)
        self._starts = np.cumsum([0, *map(len, self.sources)])
        self.classes = merge_classes([tuple(source.classes) for source in self.sources])
        self._new_labels = [_renumber(source.classes, self.classes) for source in self.sources]
        self.fingerprint = _digest([source.fingerprint for source in self.sources])
        self.skipped: dict[str, int] = dict(sum((Counter(source.skipped) for source in self.sources), Counter()))
        self.has_targets = _check_targets(self.sources)
        self.field_kinds = _check_fields(self.sources)
        self.has_fields = bool(self.field_kinds)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def refreshed(self) -> Concat:
        """Return the sources with their files as they are now."""
        now = [source.refreshed() if hasattr(source, "refreshed") else source for source in self.sources]
        return self if all(a is b for a, b in zip(now, self.sources, strict=True)) else self.over(now)

    def over(self, sources: Sequence[Source]) -> Concat:
        """Return other sources that hold the same data, joined in the same way."""
        return Concat(sources)

    def locate(self, indices: Indices, rows: Rows) -> Names:
        """Say in `rows` where images `indices` lie; those of a source that does not locate them stay ELSEWHERE."""
        parts: list[tuple[npt.NDArray[np.bool_], Rows, Names]] = []
        for number, here, inner in self._split(indices):
            source = self.sources[number]
            if is_located(source):
                own = rows[here]
                parts.append((here, own, source.locate(inner, own)))
        names = join_names([(own, named) for _, own, named in parts])
        for here, own, _ in parts:
            rows[here] = own
        return names

    def labels(self, indices: Indices) -> Indices:
        found = np.empty(len(indices), np.int64)
        for number, here, inner in self._split(indices):
            own, renumbered = self.sources[number].labels(inner), self._new_labels[number]
            found[here] = own if renumbered is None else renumbered[own]
        return found

    def targets(self, indices: Indices) -> Targets:
        empty = self.sources[0].targets(indices[:0])
        found: Targets = map_targets(lambda part: np.empty((len(indices), *part.shape[1:]), part.dtype), empty)
        for number, here, inner in self._split(indices):
            own = parts_of(self.sources[number].targets(inner))
            for name, part in parts_of(found).items():
                part[here] = own[name]
        return found

    @property
    def content(self) -> str:
        return _digest([getattr(source, "content", source.fingerprint) for source in self.sources])

    def fields(self, indices: Indices) -> dict[str, Any]:
        parts, places = [], []
        for number, here, inner in self._split(indices):
            parts.append(self.sources[number].fields(inner))
            places.append(np.flatnonzero(here))
        if not parts:
            return self.sources[0].fields(indices)  # type: ignore[no-any-return]
        order = np.argsort(np.concatenate(places))
        return {name: take_rows(join_rows([part[name] for part in parts]), order) for name in parts[0]}

    def describe(self) -> str:
        classes = count_text(len(self.classes), "class")
        texts = [source.describe() for source in self.sources[:_SHOWN]] + ["..."] * (len(self.sources) > _SHOWN)
        return f"{len(self):,} images, {classes} in {len(self.sources):,} sources ({'; '.join(texts)})"

    def _place(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        number = int(np.searchsorted(self._starts, index, "right")) - 1
        return self.sources[number], index - int(self._starts[number])

    def parts(self, indices: Indices) -> Iterator[tuple[Any, Indices]]:
        return ((self.sources[number], inner) for number, _, inner in self._split(indices))

    def _split(self, indices: Indices) -> Iterator[tuple[int, npt.NDArray[np.bool_], Any]]:
        """Yield the number of each source of images `indices`, which of these are its own, and its indices of them."""
        numbers = np.searchsorted(self._starts, indices, "right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            yield number, here, indices[here] - self._starts[number]


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
    first, *others = [dict(source.field_kinds) if has_fields(source) else {} for source in sources]
    for name, kind in first.items():
        if any(name in other and other[name].category_ids != kind.category_ids for other in others):
            for each in (first, *others):  # they have no common ids
                each |= {name: replace(each[name], category_ids=(None,) * len(kind.classes))} if name in each else {}
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
    for classes in of_sources:
        if len(set(classes)) < len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise ValueError(
                f"two classes of one source are called {shown(os.fsdecode(twice))}, and joined sources match classes "
                "by name: give them different names with classes=, or all sources the same classes"
            )
    names = sorted({name for classes in of_sources for name in classes})
    if FLAT_CLASS in names:
        unlabelled = sum(FLAT_CLASS in classes for classes in of_sources)
        warn_user(
            f"{unlabelled:,} of {len(of_sources):,} joined sources have no labels: all of their images are of class "
            f"{names.index(FLAT_CLASS)}, called '.', next to the classes of the others; with_labels(source, labels) "
            "gives them labels"
        )
    if all(name.isdigit() for name in names):
        return tuple(sorted(names, key=int))
    _warn_of_numbers(of_sources, names)
    return tuple(names)


def _warn_of_numbers(of_sources: Sequence[tuple[bytes, ...]], names: Sequence[bytes]) -> None:
    """Warn of sources whose classes are numbers next to others that have names; `names` are those of all."""
    named = (classes for classes in of_sources if classes and not any(name.isdigit() for name in classes))
    one = next((classes[0] for classes in named if classes != (FLAT_CLASS,)), None)
    for classes in of_sources:
        if not classes or not all(name.isdigit() for name in classes):
            continue
        moved = next((at for at, name in enumerate(classes) if names[at : at + 1] != [name]), None)
        if moved is not None:
            warn_user(
                f"numbers and names of classes are joined, and sorted as text: class {moved} of one source, called "
                f"{shown(os.fsdecode(classes[moved]))}, is now class {names.index(classes[moved])}; pass the same "
                "classes= to all sources for another order"
            )
            return
        if one is not None:
            warn_user(
                f"numbers and names of classes are joined: class {shown(os.fsdecode(classes[0]))} of one source and "
                f"{shown(os.fsdecode(one))} of another are two classes; pass the same classes= to all sources if the "
                "numbers are those of the names"
            )
            return


def _renumber(own: tuple[bytes, ...], merged: tuple[bytes, ...]) -> npt.NDArray[np.int64] | None:
    """Return the merged class number of each class number; None if they are the same."""
    number_of = {name: number for number, name in enumerate(merged)}
    return None if own == merged[: len(own)] else np.array([number_of[name] for name in own], np.int64)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(["penstock concat 1", *parts]).encode(), digest_size=32).hexdigest()


def join_names(parts: Sequence[tuple[Rows, Names]]) -> Names:
    """Return one table for the rows of all `parts`, which are changed to point into it: the native library takes one.

    It holds the names of these rows alone, with whole paths of folders (0.5 us each): a table of all files of all
    sources would be a copy for each process.
    """
    kept = [names.kept for _, names in parts]
    named = [(rows, names) for rows, names in parts if np.any(rows["kind"] == FILE)]
    if len(named) <= 1:
        return (named[0][1] if named else NO_NAMES)._replace(kept=kept)
    folders, files = bytearray(), bytearray()
    for rows, names in named:
        in_files = np.flatnonzero(rows["kind"] == FILE)
        for field, text, table, prefix in (
            ("folder", folders, names.folders, names.root),
            ("name", files, names.names, b""),
        ):
            begins, lengths = rows[field][in_files].tolist(), rows[f"{field}_bytes"][in_files].tolist()
            places = []
            for begin, length in zip(begins, lengths, strict=True):
                places.append(len(text))
                text += prefix
                text += table[begin : begin + length].data
            rows[field][in_files] = places
            rows[f"{field}_bytes"][in_files] = np.array(lengths, np.int64) + len(prefix)
    of_folders, of_files = (np.frombuffer(bytes(text) + b"/", np.uint8) for text in (folders, files))  # never empty
    return Names(b"", of_folders, of_files, kept)
