"""Merges classes, kinds of labels and fields, and name tables of joined sources, after checking that they agree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import ONE_CLASS, Source, has_targets, is_located
from penstock.pipelines.fields.field_kinds import FieldKind
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user
from penstock.pipelines.native.rows import FILE, NO_NAMES, Names, Rows
from penstock.pipelines.targets import map_targets


def check_targets(sources: Sequence[Source]) -> bool:
    """Return whether sources have labels other than class numbers; raise ValueError if they differ in kind."""
    if len(sources) == 1:
        return has_targets(sources[0])
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
        raise ValueError("labels of joined sources must have the same classes in the same order: pass classes= to each")
    return True


def check_fields(of_sources: Sequence[Mapping[str, FieldKind]]) -> dict[str, FieldKind]:
    """Return the fields of sources by name; raise ValueError if they differ."""
    first, *others = map(dict, of_sources)
    for name, kind in first.items():
        if any(name in other and other[name].category_ids != kind.category_ids for other in others):
            for each in (first, *others):  # they have no common ids
                each |= {name: replace(each[name], category_ids=(None,) * len(kind.classes))} if name in each else {}
    for other in others:
        if other != first:
            differ = sorted(name for name in {**first, **other} if first.get(name) != other.get(name))
            raise ValueError(f"joined sources must have equal fields, including classes; {', '.join(differ)} differ")
    return dict(first)


def merge_classes(of_sources: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """Return the class names of all sources, by class number.

    Equal tuples of classes stay unchanged. Otherwise classes are matched by name; the names are sorted as class folders
    are, or by value if all are numbers. So the order of the sources does not change the class numbers. Raises
    ValueError for a source with two classes of the same name.
    """
    if len(set(of_sources)) == 1:
        return of_sources[0]
    for classes in of_sources:
        if len(set(classes)) < len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise ValueError(
                f"two classes of one source are named {shown(os.fsdecode(twice))}, but joined sources match classes "
                "by name: use classes= to give them different names, or the same classes for all sources"
            )
    names = sorted({name for classes in of_sources for name in classes})
    if ONE_CLASS in names:
        unlabelled = sum(ONE_CLASS in classes for classes in of_sources)
        warn_user(
            f"{unlabelled:,} of {len(of_sources):,} joined sources have no labels: all their images are in class "
            f"{names.index(ONE_CLASS)}, named '.', besides the classes of the others; with_labels(source, labels) "
            "adds labels"
        )
    if all(name.isdigit() for name in names):
        return tuple(sorted(names, key=int))
    _warn_of_numbers(of_sources, names)
    return tuple(names)


def _warn_of_numbers(of_sources: Sequence[tuple[bytes, ...]], names: Sequence[bytes]) -> None:
    """Warn if class numbers of some sources are joined with class names of others; `names` are all names."""
    named = (classes for classes in of_sources if classes and not any(name.isdigit() for name in classes))
    one = next((classes[0] for classes in named if classes != (ONE_CLASS,)), None)
    for classes in of_sources:
        if not classes or not all(name.isdigit() for name in classes):
            continue
        moved = next((at for at, name in enumerate(classes) if names[at : at + 1] != [name]), None)
        if moved is not None:
            warn_user(
                f"numbers and names of classes are joined and sorted as text: class {moved} of one source, named "
                f"{shown(os.fsdecode(classes[moved]))}, is now class {names.index(classes[moved])}; pass the same "
                "classes= to all sources for another order"
            )
            return
        if one is not None:
            warn_user(
                f"numbers and names of classes are joined: class {shown(os.fsdecode(classes[0]))} of one source and "
                f"{shown(os.fsdecode(one))} of another are two classes; pass the same classes= to all sources if the "
                "numbers belong to the names"
            )
            return


def renumber(own: tuple[bytes, ...], merged: tuple[bytes, ...]) -> npt.NDArray[np.int64] | None:
    """Return the merged class number of each class number; None if they are the same."""
    number_of = {name: number for number, name in enumerate(merged)}
    return None if own == merged[: len(own)] else np.array([number_of[name] for name in own], np.int64)


def locate_joined(parts: Iterable[Any], rows: Rows) -> Names:
    """Fill `rows` with the places of images. parts: for each source, the source, its rows, and its indices."""
    found: list[tuple[Any, Rows, Names]] = []
    for source, here, indices in parts:
        if is_located(source):
            own = rows[here]
            found.append((here, own, source.locate(indices, own)))
    names = join_name_tables([(own, named) for _, own, named in found])
    for here, own, _ in found:
        rows[here] = own
    return names


def join_name_tables(parts: Sequence[tuple[Rows, Names]]) -> Names:
    """Return one table for the rows of all `parts`, which are changed to point into it: the native library needs one.

    It contains only the names of these rows, with whole paths of folders (0.5 us each): a table of all files of all
    sources would be copied in each process.
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
