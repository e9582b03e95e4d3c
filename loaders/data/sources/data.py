"""Data as a table: samples of sources, joined or chosen, with added columns of labels and fields."""

from __future__ import annotations

import copy
import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.samples.columns import StoredValues, take_values
from penstock.loaders.data.sources.contract import (
    Abilities,
    BlockSource,
    SampledSource,
    Source,
    content_of,
    field_kinds_of,
    is_cache,
    is_fetching,
    is_located,
    refresh_source,
    refuse_mixture,
    sample_name,
)
from penstock.loaders.data.sources.joined import check_fields, check_targets, locate_joined, merge_classes, renumber
from penstock.loaders.data.sources.sample import BySample, out_of_range
from penstock.loaders.data.sources.step import Field, MixtureShares, Step
from penstock.loaders.system.shared_memory import SharedArray
from penstock.pipelines.errors import LoaderError, count_text
from penstock.pipelines.fields.ragged import join_rows, take_rows
from penstock.pipelines.native.rows import Names, Rows
from penstock.pipelines.targets import Targets, parts_of

Indices = npt.NDArray[np.int64]
_SHOWN = 3  # parts described by describe()
_ALONE = ""  # the name of unnamed labels


class Data(BySample):
    """All samples of several sources, in the order of the sources, or chosen samples of one source.

    Labels and fields come from added columns, or from the sources; only the sources read images, so a cache can replace
    them. `take` and `add` return a new table. Rows are in shared memory, 4 bytes each (8 above 2**31 samples); columns
    added before the same choice share them, and data in order has none. Pickles only while a process is being started,
    as SharedArray does.

    Args:
        parts: the sources. Their classes are merged by merge_classes.
        joined: whether they are joined; otherwise there is one part, and steps follow.
        mixture: the MixtureShares of a mix(...).

    Attributes:
        steps: the steps applied; the first, without words, selects the samples of the only part.
        abilities: the abilities of this data.
        label_classes: class names of labels that are not class numbers, by label name ("" for a single label).
    """

    def __init__(self, parts: Sequence[Source], *, joined: bool = False, mixture: MixtureShares | None = None) -> None:
        for part in parts if joined else ():
            refuse_mixture(part, "concat, another mix or a list", "pass all sources and their shares to one mix(...)")
        self.is_joined, self.mixture = joined, mixture if joined else getattr(parts[0], "mixture", None)
        self.steps: tuple[Step, ...] = ()
        self._show(parts)

    def _show(self, parts: Sequence[Source], target_parts: tuple[Any, ...] = ()) -> None:
        """Set the parts and cache their properties; `target_parts` may provide targets that the parts lack."""
        self.parts: tuple[Any, ...] = tuple(parts)
        self._starts = np.cumsum([0, *map(len, parts)])
        self.steps = self.steps or (Step("", num_rows=int(self._starts[-1])),)
        self._fetching = list(filter(is_fetching, self.parts))
        self.is_cache = all(map(is_cache, self.parts))
        self._own_classes = merge_classes([tuple(part.classes) for part in parts])
        self._new_labels = [renumber(tuple(part.classes), self._own_classes) for part in parts]
        self._target_parts = self.parts if check_targets(parts) else target_parts
        self._own_kinds = check_fields(list(map(field_kinds_of, parts)))
        if not self.is_joined and hasattr(parts[0], "root"):
            self.root: bytes = parts[0].root
        self.skipped: dict[str, int] = dict(sum((Counter(part.skipped) for part in parts), Counter()))
        self.holds_interpreter_lock = any(getattr(part, "holds_interpreter_lock", False) for part in parts)
        self._look_up()

    def _look_up(self) -> None:
        """Find the columns to serve: the last one of each name."""
        self.classes, self.field_kinds, has_targets = self._own_classes, dict(self._own_kinds), bool(self._target_parts)
        first = (self._target_parts or self.parts)[0]
        self.label_classes: dict[str, tuple[bytes, ...]] = getattr(first, "label_classes", {})
        self._labels: tuple[Mapping[str, StoredValues], Step] | None = None
        self._content: str | None = None
        self._numbers: npt.NDArray[np.int64] | None = None
        self._columns: dict[str, tuple[Field, Step]] = {}
        for step in self.steps:
            if step.labels is not None:
                of, self._numbers = step.labels.labels, None
                has_targets = not (_ALONE in of and of[_ALONE].are_classes)
                self._labels, self.classes = (of, step), of[_ALONE].classes if _ALONE in of else ()
                named = {name: column.classes for name, column in of.items() if column.classes}
                self.label_classes = named if has_targets else {}
            elif step.classes is not None and step.numbers is not None:
                self.classes = step.classes
                self._numbers = step.numbers if self._numbers is None else step.numbers[self._numbers]
            elif step.fields is not None:
                new = step.fields  # fields of replaced boxes, such as keypoints, are dropped with them
                self.field_kinds = {name: kind for name, kind in self.field_kinds.items() if kind.of not in new}
                self.field_kinds |= {name: field.kind for name, field in new.items()}
                self._columns |= {name: (field, step) for name, field in new.items()}
        self.fingerprint = self._identify([part.fingerprint for part in self.parts])
        self.abilities = Abilities(
            locates=any(map(is_located, self.parts)), fetches=bool(self._fetching), has_targets=has_targets
        )

    def _identify(self, of_parts: Sequence[str], *, with_files: bool = False) -> str:
        found = _digest("\n".join(["penstock concat 1", *of_parts])) if self.is_joined else of_parts[0]
        for step in self.steps[1:]:
            found = _digest(f"{found} {step.words}")
            if with_files and step.fields is not None:
                columns = (field.column for field in step.fields.values())
                found = _digest(found, b"".join(each.content() for each in columns if hasattr(each, "content")))
        return found

    @property
    def content(self) -> str:
        """Hex digest that also covers the times of files at the first call."""
        self._content = self._content or self._identify(list(map(content_of, self.parts)), with_files=True)
        return self._content

    def take(self, indices: npt.NDArray[np.integer[Any]], text: str = "") -> Data:
        """Return the samples `indices` (int [n]), in that order. Raises LoaderError E-NODATA if there are none.

        text: prefix of the description, by default such as "900 of ".
        """
        if not len(indices):
            cause = f"the subset contains none of the {len(self):,} samples"
            raise LoaderError("E-NODATA", cause, fix="choose a larger part", path=getattr(self, "root", None))
        *steps, last = self._choose(indices)
        if steps[-1].chooses and not text:  # a part of a part becomes one step
            last = steps.pop()
        digest = hashlib.blake2b(np.ascontiguousarray(last.rows.array, "<i8").data, digest_size=32).hexdigest()
        last = last._replace(words=f"subset {digest}", before=text or f"{len(indices):,} of ", chooses=True)
        return self._with_steps((*steps, last))

    def _choose(self, indices: npt.NDArray[np.integer[Any]]) -> list[Any]:
        """Return the steps with the rows of samples `indices`, and a step for the choice itself."""
        refuse_mixture(self, "a part of the data (subset, max_per_class, split)")
        chosen: dict[int, SharedArray] = {}

        def choose(step: Step) -> Step:
            if id(step.rows) not in chosen:
                kind = np.int32 if step.num_rows <= 1 << 31 else np.int64
                rows = SharedArray.create((len(indices),), kind, name="penstock-subset")
                rows.array[:] = step.rows_of(indices)
                chosen[id(step.rows)] = rows
            return step._replace(rows=chosen[id(step.rows)])

        return list(map(choose, (*self.steps, Step("", num_rows=len(self)))))

    def add(self, step: Step) -> Data:
        """Return the same samples with a step's columns or class numbers."""
        return self._with_steps((*self.steps, step._replace(num_rows=len(self))))

    def _with_steps(self, steps: tuple[Step, ...]) -> Data:
        view = copy.copy(self)
        view.__dict__.pop("refreshed", None)  # an override on this object only
        view.steps = steps
        view._look_up()
        return view

    def with_readers(self, parts: Sequence[Source]) -> Data:
        """Return the same table over other sources of the same samples, such as a cache."""
        view = self._with_steps(self.steps)
        view._show(parts, self._target_parts)
        return view

    def refreshed(self) -> Data:
        """Return this data with the current state of its files.

        Raises LoaderError E-CHANGED if the images have changed, unless the sources are only joined.
        """
        now = list(map(refresh_source, self.parts))
        if all(a is b for a, b in zip(now, self.parts, strict=True)) and not self._columns:
            self._content = None
            return self
        if self.is_joined:
            return Data(now, joined=True, mixture=self.mixture)
        if now[0].fingerprint != self.parts[0].fingerprint:
            cause = "images were added, removed or changed since a part was chosen"
            raise LoaderError("E-CHANGED", cause, path=getattr(self, "root", None))
        return self.with_readers(now)

    @property
    def is_whole(self) -> bool:
        """Whether a cache is built from this data and not from its only part: only fields were added."""
        part = self.parts[0]
        is_bare = self.is_joined or not isinstance(part, Data) or part.is_whole
        return is_bare and all(step.fields is not None for step in self.steps[1:])

    def __len__(self) -> int:
        last = self.steps[-1]
        return last.num_rows if last.rows is None else len(last.rows.array)

    @property
    def indices(self) -> npt.NDArray[Any]:
        """The index of each sample in the whole data, int [n]: never write to it."""
        last = self.steps[-1]
        return last.rows.array if last.chooses and last.rows is not None else np.arange(len(self))

    def part_rows(self, indices: Indices) -> Iterator[tuple[Any, Indices]]:
        """Yield each part that contains samples `indices`, and their indices in it."""
        return ((self.parts[number], inner) for number, _, inner in self._split(indices))

    def _split(self, indices: Indices) -> Iterator[tuple[int, Any, Indices]]:
        """Yield each part's number, the selection of `indices` in it, and their indices in the part."""
        if len(self.parts) == 1:
            yield 0, slice(None), self.steps[0].rows_of(indices)
            return
        numbers = np.searchsorted(self._starts, indices, "right") - 1
        for number in np.unique(numbers).tolist():
            here = numbers == number
            yield number, here, indices[here] - self._starts[number]

    def _place(self, index: int) -> tuple[Any, int]:
        """Return the part that contains sample `index`, and its index there. Raises IndexError."""
        if not 0 <= index < len(self):
            raise out_of_range(index, len(self))
        row = self.steps[0].row_of(index)
        number = bisect_right(self._starts, row) - 1
        return self.parts[number], row - int(self._starts[number])

    def _gather(self, indices: Indices, look_up: Callable[[int, Indices], dict[str, Any]]) -> dict[str, Any]:
        """Return values of samples by name; `look_up` is called with the number of a part and indices in it."""
        if len(self.parts) == 1 or not len(indices):
            return look_up(0, self.steps[0].rows_of(indices))
        split = list(self._split(indices))
        found = [look_up(number, inner) for number, _, inner in split]
        order = np.argsort(np.concatenate([np.flatnonzero(here) for _, here, _ in split]))
        return {name: take_rows(join_rows([values[name] for values in found]), order) for name in found[0]}

    # ---- a source ----

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        part, inner = self._place(index)
        return part.read(inner)  # type: ignore[no-any-return]

    def stored_orientation(self, index: int) -> int:
        """Return the EXIF orientation of image `index` that a cache stores separately; 0 if there is none."""
        part, inner = self._place(index)
        return part.stored_orientation(inner) if hasattr(part, "stored_orientation") else 0

    def locate(self, indices: Indices, rows: Rows) -> Names:
        """Fill `rows` with the places of images `indices`; images that a part does not locate stay ELSEWHERE."""
        if len(self.parts) == 1:
            return self.parts[0].locate(self.steps[0].rows_of(indices), rows)  # type: ignore[no-any-return]
        return locate_joined(((self.parts[number], *own) for number, *own in self._split(indices)), rows)

    @property
    def has_room(self) -> bool:
        return all(part.has_room for part in self._fetching)

    def announce(self, indices: Indices) -> None:
        for part, inner in self._parts_in(self._fetching, indices):
            part.announce(inner)

    def make_room(self, num_samples: int) -> bool:
        return all(isinstance(part, BlockSource) and part.make_room(num_samples) for part in self._fetching)

    def announce_blocks(self, indices: Indices) -> None:
        for part, inner in self._parts_in(self._fetching, indices):
            part.announce_blocks(inner)

    def forget(self) -> None:
        for part in self._fetching:
            part.forget()

    def _parts_in(self, some: Sequence[object], indices: Indices) -> Iterator[tuple[Any, Indices]]:
        return (both for both in self.part_rows(indices) if any(both[0] is part for part in some))

    @property
    def traffic(self) -> tuple[int, int]:
        """Number of requests answered and of bytes received."""
        requests, num_bytes = zip(*(getattr(part, "traffic", (0, 0)) for part in self.parts), strict=True)
        return sum(requests), sum(num_bytes)

    def path(self, index: int) -> bytes:
        part, inner = self._place(index)
        return part.path(inner)  # type: ignore[no-any-return]

    def name(self, index: int) -> bytes:
        """Return the name of image `index` in its own source, as sample_name defines it."""
        return sample_name(*self._place(index))

    def labels(self, indices: Indices) -> Indices:
        def look_up(number: int, inner: Indices) -> dict[str, Indices]:
            own, renumbered = self.parts[number].labels(inner), self._new_labels[number]
            return {_ALONE: own if renumbered is None else renumbered[own]}

        if self._labels is None:
            found: Indices = self._gather(indices, look_up)[_ALONE]
        else:
            found = np.zeros(len(indices), np.int64)
            if not self.abilities.has_targets:
                columns, step = self._labels
                found = columns[_ALONE].serve(step.rows_of(indices))
        return found if self._numbers is None else self._numbers[found]

    def targets(self, indices: Indices) -> Targets:
        if self._labels is None:
            found = self._gather(indices, lambda number, inner: parts_of(self._target_parts[number].targets(inner)))
        else:
            columns, step = self._labels
            rows = step.rows_of(indices)
            found = {name: column.serve(rows) for name, column in columns.items()}
        return found[_ALONE] if list(found) == [_ALONE] else found

    def fields(self, indices: Indices) -> dict[str, Any]:
        own = self._gather(indices, lambda number, inner: self.parts[number].fields(inner)) if self._own_kinds else {}
        added = {
            name: take_values(field.kind, field.column, step.rows_of(indices))
            for name, (field, step) in self._columns.items()
            if name in self.field_kinds and not self.field_kinds[name].is_picture
        }
        return {**own, **added}

    def mask(self, name: str, index: int) -> bytes | npt.NDArray[Any]:
        if name in self._columns:
            field, step = self._columns[name]
            return field.column.read(step.row_of(index))  # type: ignore[no-any-return]
        part, inner = self._place(index)
        return part.mask(name, inner)  # type: ignore[no-any-return]

    def field_path(self, name: str, index: int) -> bytes | None:
        """Return the path of the file with field `name` of image `index`; None if it has no separate file."""
        if name in self._columns:
            field, step = self._columns[name]
            return field.path(step.row_of(index), self.name(index))
        part, inner = self._place(index)
        return part.field_path(name, inner) if hasattr(part, "field_path") else None

    def describe(self) -> str:
        text: str = self.parts[0].describe()
        if self.is_joined:
            texts = [part.describe() for part in self.parts[:_SHOWN]] + ["..."] * (len(self.parts) > _SHOWN)
            classes, count = count_text(len(self.classes), "class"), len(self.parts)
            text = f"{len(self):,} images, {classes} in {count:,} sources ({'; '.join(texts)})"
        for step in self.steps:
            text = f"{step.before}{text}{step.after}"
        return text


def as_data(source: Source) -> Data:
    """Return `source` as data to which a step can be added without changing what a cache contains."""
    is_open = type(source) is Data and not source.is_whole and "refreshed" not in vars(source)  # overridden
    return source if is_open else Data([source])  # type: ignore[return-value]


def join_sources(sources: Sequence[Source]) -> SampledSource:
    """Return several sources as one; a single source unchanged. Raises ValueError without a source."""
    if not sources:
        raise ValueError("concat needs at least one source, got none")
    return sources[0] if len(sources) == 1 else Data(sources, joined=True)  # type: ignore[return-value]


def find_whole(source: Source) -> list[Source]:
    """Return the whole data sets behind `source`, each once; a single one for a subset or a split."""
    found = [whole for part in source.parts for whole in find_whole(part)] if isinstance(source, Data) else [source]
    return [each for number, each in enumerate(found) if not any(each is other for other in found[:number])]


def only_whole(source: Source) -> Any:
    """Return the only whole data set behind `source`, without labels and fields that were added to it."""
    (whole,) = find_whole(source)
    return whole


def find_places(source: Source, indices: Indices) -> Iterator[tuple[Source, Indices]]:
    """Yield each whole data set that contains samples `indices`, and their indices in it."""
    if not isinstance(source, Data):
        yield source, indices
        return
    for part, inner in source.part_rows(indices):
        yield from find_places(part, inner)


def images_of(source: Source) -> Any:
    """Return the source of the images, without labels that are not class numbers, which a cache does not store."""
    if not isinstance(source, Data) or source.steps[-1].labels is None or not source.abilities.has_targets:
        return source
    return source._with_steps(source.steps[:-1]) if len(source.steps) > 2 else source.parts[0]


def _digest(text: str, more: bytes = b"") -> str:
    return hashlib.blake2b(text.encode() + more, digest_size=32).hexdigest()
