"""Expands patterns of file names: globs, and ranges in braces such as train-{0000..1023}.tar."""

from __future__ import annotations

import glob
import os
import re

from penstock.pipelines.errors import LoaderError

_BRACES = re.compile(rb"\{([^{}]*)\}")
_RANGE = re.compile(rb"(\d+)\.\.(\d+)")
AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_MOST_NAMES = 10_000_000  # limit per pattern: more is probably a typing error


def is_pattern(path: bytes) -> bool:
    """Return whether `path` is a pattern: it has a wildcard or braces, and no file has exactly this name."""
    return bool(glob.has_magic(path) or _BRACES.search(path)) and not os.path.exists(path)


def expand_pattern(pattern: bytes) -> list[bytes]:
    """Return the files of `pattern`: braces are expanded in order, the matches of a wildcard are sorted.

    Raises LoaderError E-NODATA if a wildcard matches nothing, ValueError for a range that runs backwards.
    """
    paths: list[bytes] = []
    for name in expand_braces(pattern):
        if not glob.has_magic(name):
            paths.append(name)
            continue
        found = sorted(glob.glob(name, recursive=True))
        if not found:
            fix = "check the pattern: * matches part of a name, ** matches any folders"
            raise LoaderError("E-NODATA", "no file matches this pattern", fix=fix, path=name)
        paths += found
    return paths


def expand_braces(pattern: bytes) -> list[bytes]:
    """Return the names with all braces expanded. Raises ValueError for a range that runs backwards."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], expand_braces(pattern[found.end() :])
    choices = [choice for part in found[1].split(b",") for choice in _expand_range(part)]
    if len(choices) * len(after) > _MOST_NAMES:
        raise ValueError(f"the pattern {os.fsdecode(pattern)!r} expands to {len(choices) * len(after):,} files")
    return [before + choice + end for choice in choices for end in after]


def _expand_range(part: bytes) -> list[bytes]:
    """Return the numbers of `first..last`, padded to the length of `first`; anything else unchanged."""
    found = _RANGE.fullmatch(part)
    if found is None:
        return [part]
    first, last = int(found[1]), int(found[2])
    if last < first or last - first >= _MOST_NAMES:
        raise ValueError(f"a range in braces must run upwards, got {os.fsdecode(part)!r}")
    return [b"%0*d" % (len(found[1]), number) for number in range(first, last + 1)]
