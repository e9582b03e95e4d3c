"""Joins the names that rows of several sources point into, since the native library takes one table per batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.pipelines.native.rows import FILE, NO_NAMES, Names, Rows


def join_names(parts: Sequence[tuple[Rows, Names]]) -> Names:
    """Return one table for the rows of all `parts`, which are changed to point into it.

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
