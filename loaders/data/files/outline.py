"""A short table of a data set's sample names, from which a state later finds the few that came or went.

It is an invertible Bloom lookup table (Goodrich and Mitzenmacher, arXiv 1101.2245): each name is added to three of 24
cells. Of two tables the difference holds only the names that one of them lacks; about a dozen of them can be read back.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.files.contract import Source, sample_name
from penstock.pipelines.errors import LoaderError, count_text, printable

MAX_SAMPLES = 100_000  # of more samples a state has no outline: it takes a microsecond or two for each, once
_TABLES, _CELLS = 3, 8
_CELL = np.dtype([("count", "<i4"), ("names", "<u8")])


def make_outline(source: Source) -> str | None:
    """Return the outline of a source's names as text; None for large sources, and for those without names."""
    if len(source) > MAX_SAMPLES:
        return None
    try:
        keys = _keys(source)
    except Exception:  # of a source of the user's, which may not name all samples
        return None
    cells = np.zeros((_TABLES, _CELLS), _CELL)
    for table in range(_TABLES):
        places = _place(keys, table)
        cells["count"][table] = np.bincount(places, minlength=_CELLS)
        np.bitwise_xor.at(cells["names"][table], places, keys)
    return base64.b64encode(cells.tobytes()).decode()


def explain_other_data(error: LoaderError, state: Any, source: Source, outline: str | None) -> LoaderError:
    """Return the error of a state of other data with the first samples that are new or gone, if they can be found."""
    saved = state.get("outline") if isinstance(state, Mapping) else None
    if not error.cause.startswith("the state is of other data") or outline is None or not isinstance(saved, str):
        return error
    if saved == outline:
        found = "no name has changed, so files or labels have"
    else:
        found = _describe(_read(saved), _read(outline), source)
    return LoaderError(error.code, f"{error.cause}; {found}" if found else error.cause, fix=error.fix)


def _describe(saved: npt.NDArray[Any] | None, mine: npt.NDArray[Any] | None, source: Source) -> str:
    if saved is None or mine is None:
        return ""
    keys = _keys(source)
    number_of = dict(zip(keys.tolist(), range(len(keys)), strict=True))
    found = _subtract(saved, mine, number_of.__contains__)
    if found is None:
        return "many names have changed"
    new = sorted(number_of[key] for key in found[0])
    first = f", first {printable(sample_name(source, new[0]))}" if new else ""
    return f"{count_text(len(new), 'sample')} new{first}, {len(found[1])} gone"


def _subtract(
    saved: npt.NDArray[Any], mine: npt.NDArray[Any], is_mine: Callable[[int], bool]
) -> tuple[list[int], list[int]] | None:
    """Return the keys that only `mine` has, and those that only `saved` has; None if there are too many."""
    count, names = mine["count"] - saved["count"], mine["names"] ^ saved["names"]
    new: list[int] = []
    gone: list[int] = []
    while count.any() or names.any():
        pure = (
            (int(names[at]), int(count[at]))
            for at in zip(*np.nonzero(abs(count) == 1), strict=True)
            if _place(names[at], at[0]) == at[1] and is_mine(int(names[at])) == (count[at] == 1)
        )
        key, sign = next(pure, (0, 0))
        if not sign or len(new) + len(gone) >= _TABLES * _CELLS:
            return None
        (new if sign == 1 else gone).append(key)
        for table in range(_TABLES):
            place = _place(np.uint64(key), table)
            count[table, place] -= sign
            names[table, place] ^= np.uint64(key)
    return new, gone


def _keys(source: Source) -> npt.NDArray[np.uint64]:
    digests = [hashlib.blake2b(sample_name(source, at), digest_size=8).digest() for at in range(len(source))]
    return np.frombuffer(b"".join(digests), "<u8")


def _place(keys: Any, table: int) -> Any:
    return (keys >> np.uint64(8 * table)).astype(np.int64) % _CELLS


def _read(outline: str) -> npt.NDArray[Any] | None:
    try:
        return np.frombuffer(base64.b64decode(outline), _CELL).reshape(_TABLES, _CELLS)
    except ValueError:
        return None
