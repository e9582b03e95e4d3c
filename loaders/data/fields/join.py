"""Joins samples with files and images by name: each sample has one partner, and no two samples share one."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.sources.contract import Source, sample_name
from penstock.loaders.data.sources.data import find_whole
from penstock.pipelines.errors import count_text, printable

_TAR = b".tar"
_ROW = re.compile(rb"row \d+")  # names of samples in Parquet and Arrow files


class Named(NamedTuple):
    """A sample's name and its container: the path of a tar, or the folder of a data set."""

    container: bytes
    name: bytes

    def __str__(self) -> str:
        between = ":" if self.container.endswith(_TAR) else "/"
        return f"{printable(self.container)}{between}{printable(self.name)}" if self.container else printable(self.name)


def stem(name: str) -> str:
    """Return a name without its last suffix, including folders; tars of "." have names that begin with "./"."""
    return os.path.splitext(name.removeprefix("./"))[0]


def file_stem(name: str) -> str:
    """Return the name, without suffix, of the file in another folder that belongs to the sample named `name`.

    An absolute path is the name of a sample in a list of paths: its folders are left out.
    """
    return stem(os.path.basename(name) if os.path.isabs(name) else name)


def refuse_repeated(
    keys: Iterable[str], call: Callable[[int], object], what: str, cure: str, called: str = "key"
) -> dict[str, int]:
    """Return key -> number; raise ValueError for a repeated key, with both names from `call`.

    called: word for a key in messages.
    """
    number_of: dict[str, int] = {}
    for number, key in enumerate(keys):
        first = number_of.setdefault(key, number)
        if first != number:
            raise ValueError(f"two {what} have the {called} {key!r}: {call(first)} and {call(number)}; {cure}")
    return number_of


def sample_stems(source: Source, what: str) -> list[str]:
    """Return the name of each sample's file in another folder, as file_stem does.

    what: the files to be found by these names, for the message. Raises ValueError if two samples have the same name; if
    names are absolute paths, this includes samples that a part of the data leaves out.
    """
    names = [os.fsdecode(sample_name(source, index)) for index in range(len(source))]
    cure = (
        f"both would share one of the {what}: add fields to each source before concat, or pass a list, one per sample"
    )
    for each in find_whole(source) if any(map(os.path.isabs, names)) else ():
        stems = [file_stem(os.fsdecode(sample_name(each, index))) for index in range(len(each))]
        refuse_repeated(stems, lambda index, each=each: printable(each.path(index)), "samples", cure)  # type: ignore[misc]
    stems = list(map(file_stem, names))
    refuse_repeated(stems, lambda index: printable(source.path(index)), "samples", cure)
    return stems


def find_partners(source: Source, partners: Source, what: str) -> npt.NDArray[np.int64]:
    """Return for each sample the number of the image of `partners` with the same key, int64 [n].

    The key is the name without its last suffix; with tars, it may also be the name up to its first dot, as in
    WebDataset; if all names are absolute paths, it may be their last part. Keys that occur in several tars are joined
    within tars of the same name. Raises ValueError for a repeated key, with both names, and for a sample without a
    partner.

    what: word for a partner in messages, such as "mask".
    """
    left, right = _names_of(source), _names_of(partners)
    if all(_ROW.fullmatch(named.name) for named in (*left, *right)):
        _refuse_other_rows(source, partners, what)
    keys: list[Callable[[str], str]] = [stem]
    if any(named.container.endswith(_TAR) for named in (*left[:1], *right[:1])):
        keys.append(_webdataset_key)
    if all(os.path.isabs(named.name) for named in (*left, *right)):
        whole = [file_stem(os.fsdecode(named.name)) for each in find_whole(source) for named in _names_of(each)]
        keys += [file_stem] if len(set(whole)) == len(whole) else []
    refused: ValueError | None = None
    for key in keys:
        for is_by_container in (False, True):
            try:
                return _join(left, right, key, is_by_container, what)
            except ValueError as error:  # report the error of the first and simplest key
                refused = refused or error
    assert refused is not None
    raise refused


def _refuse_other_rows(source: Source, partners: Source, what: str) -> None:
    """Raise ValueError for tables with different numbers of rows: their rows do not correspond."""
    containers = [
        [named.container for whole in find_whole(side) for named in _names_of(whole)] for side in (source, partners)
    ]
    if {*containers[0]} == {*containers[1]}:  # columns of one table; unlabelled rows may be left out
        return
    rows = [Counter(map(os.path.basename, each)) for each in containers]
    are_equal = rows[0] == rows[1] or (len(rows[0]) == len(rows[1]) == 1 and rows[0].total() == rows[1].total())
    if not are_equal:
        counts = " and ".join(
            f"{of.total():,} in {count_text(len(of), 'file')} (first {printable(next(iter(of), b''))})" for of in rows
        )
        raise ValueError(
            f"samples and {what}s are only identified by their rows, but the rows are {counts}: pass files with equal "
            f"names and rows, or a list with one {what} per sample"
        )


def _names_of(source: Source) -> list[Named]:
    found = []
    for index in range(len(source)):
        name, path = sample_name(source, index), source.path(index)
        container = path[: -len(name) - 1] if path.endswith(name) and len(path) > len(name) else b""
        found.append(Named(container, name))
    return found


def _join(
    left: Sequence[Named], right: Sequence[Named], key: Callable[[str], str], is_by_container: bool, what: str
) -> npt.NDArray[np.int64]:
    def keys_of(names: Sequence[Named]) -> list[str]:
        keys = [key(os.fsdecode(named.name)) for named in names]
        if not is_by_container:
            return keys
        return [f"{os.path.basename(os.fsdecode(n.container))}:{k}" for n, k in zip(names, keys, strict=True)]

    cure = f"each sample needs a separate {what}: add fields to each source before concat, or pass a list in order"
    own = refuse_repeated(keys_of(left), left.__getitem__, "samples", cure)
    numbers = refuse_repeated(keys_of(right), right.__getitem__, f"{what}s", cure)
    for wanted, index in own.items():
        if wanted not in numbers:
            first = f", the first one has {next(iter(numbers))!r}" if numbers else ""
            raise ValueError(
                f"no {what} for sample {index} ({left[index]}): none of the {what}s has the key {wanted!r}{first}"
            )
    return np.array([numbers[wanted] for wanted in own], np.int64)


def _webdataset_key(name: str) -> str:
    folder, _, last = name.removeprefix("./").rpartition("/")
    return f"{folder}/{last.partition('.')[0]}"
