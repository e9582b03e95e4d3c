"""Says what to do about data that are not read: other formats, paths with a slip, objects of other kinds."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from typing import Any

from penstock.pipelines.errors import LoaderError, printable

_AS_DATASET = "open it with its own library as a map-style data set, for penstock.loaders.DataLoader"
_AS_ARRAYS = "load it, and pass (images uint8 [n, height, width, 3], labels)"
_CURES = {
    ("tfrecord", "tfrecords", "tfrec", "rec"): "write its images to a class folder, or to tars as WebDataset has them",
    ("beton",): "pass the data that it was written from; `penstock cache build` makes a cache of them",
    ("lmdb", "mdb", "mds"): f"{_AS_DATASET}; or write its images to a class folder or to tars",
    ("zip", "7z", "rar"): "unpack it, and pass the folder",
    ("npy", "npz", "pt", "pth", "pkl", "pickle", "mat"): _AS_ARRAYS,
    ("txt", "list", "lst"): "pass a list of (path, label), or a table (.csv) with a line of column names",
    ("json",): "write it as .jsonl, one object per line",
    ("ppm", "heic", "avif", "jp2"): "convert it to JPEG, PNG or WebP",
}
_NOTES = ("txt", "json")  # which lie next to data of any format
_FEW = 16  # files of a folder that are looked at
_BY_SUFFIX = {suffix: cure for suffixes, cure in _CURES.items() for suffix in suffixes}
_HOST = re.compile(rb"(localhost|[\w-]+(\.[\w-]+)+)(:\d+)?/", re.ASCII)


def cure_by_name(path: bytes) -> str | None:
    """Return what to do about a file of another format by its suffix, or a folder by that of a file in it, or None."""
    names = [path]
    if os.path.isdir(path):
        with os.scandir(path) as entries:
            names += [entry.name for entry, _ in zip(entries, range(_FEW), strict=False)]
    suffixes = [os.fsdecode(name.rstrip(b"/")).lower().rpartition(".")[2] for name in names]
    known = suffixes[:1] + [suffix for suffix in suffixes[1:] if suffix not in _NOTES]
    return next((_BY_SUFFIX[suffix] for suffix in known if suffix in _BY_SUFFIX), None)


def missing_path(path: bytes) -> LoaderError:
    """Return the error for a path that is not there, with the nearest one that is."""
    return LoaderError("E-NODATA", "no such file or folder", fix=_find_slip(path), path=path)


def _find_slip(path: bytes) -> str:
    if not path:
        return "the path is empty: check the variable that it comes from"
    if path.startswith(b"~"):
        return "the shell replaces ~, Python does not: pass os.path.expanduser(path)"
    if _HOST.match(path) and not os.path.exists(path.partition(b"/")[0]):
        return f"if it is a URL, write its scheme: {printable(b'https://' + path)}"
    scheme = re.match(rb"([a-z][a-z0-9+.-]+):/*(?=[^/])", path)
    if scheme:
        return f"write a URL with two slashes: {printable(scheme[1] + b'://' + path[scheme.end() :])}"
    parent, name = os.path.split(path.rstrip(b"/"))
    if parent and not os.path.exists(parent):
        return f"check the path: {printable(parent)} is not there either"
    try:
        nearest = difflib.get_close_matches(os.fsdecode(name), map(os.fsdecode, os.listdir(parent or b".")), 1)
    except OSError:
        nearest = []
    if nearest:
        return f"perhaps {printable(os.path.join(parent, os.fsencode(nearest[0])))}"
    return f"check the path; the current folder is {printable(os.getcwdb())}"


def cure_of_object(spec: Any) -> str | None:
    """Return what to pass instead of an object that is not data; None if nothing is known of it."""
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        return "pass a pair (images, labels) of arrays"
    if isinstance(spec, Iterator):
        return "pass list(...) of it, because samples are read by number"
    if not isinstance(spec, (list, tuple)):
        return None
    if not spec:
        return "the list is empty"
    if all(hasattr(part, "shape") for part in spec):
        return "stack images of one size, and pass (np.stack(images), labels); write others to a class folder"
    return None
