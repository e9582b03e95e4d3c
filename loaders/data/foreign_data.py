"""Advice for data that cannot be read: other formats, mistyped paths, objects of other kinds."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.foreign_names import cure_of_name

_AS_DATASET = "open it with its own library as a map-style data set, and pass that to penstock.loaders.DataLoader"
_AS_ARRAYS = "load it and pass (images uint8 [n, height, width, 3], labels)"
_AS_PATTERN = "pass a pattern of files with one image each, such as {pattern}, or np.load one of them all"
_CURES = {
    ("tfrecord", "tfrecords", "tfrec", "rec"): "write its images to a class folder or to WebDataset tars",
    ("beton",): "pass the data that it was written from; `penstock cache build` makes a cache from it",
    ("lmdb", "mdb", "mds"): f"{_AS_DATASET}; or write its images to a class folder or to tars",
    ("zip", "7z", "rar"): "unpack it and pass the folder",
    ("npy",): f"{_AS_PATTERN} and pass (images, labels)",
    ("npz", "pt", "pth", "pkl", "pickle", "mat"): _AS_ARRAYS,
    ("txt", "list", "lst"): "pass a list of (path, label), or a table (.csv) with a line of column names",
    ("json",): "write it as .jsonl, one object per line",
    ("ppm", "heic", "avif", "jp2"): "convert it to JPEG, PNG or WebP",
    ("dcm", "dicom", "nii", "mha", "nrrd", "exr", "hdr"): "convert each image to TIFF, PNG of 16 bits, or .npy",
}
_NOTES = ("txt", "json")  # may accompany data of any format
_FEW = 16  # number of files checked in a folder
_OF_LABELS = "with_labels(source, labels) gives data other labels; the classes of a folder are its folders"
_OF_TEXTS = "with_fields(source, text=[...]) adds texts; a cache serves those of its data without this option"
_OF_LOADER = "it is an option of create_loader"
_OF_URLS = "it applies only to URLs, such as s3://bucket/train/"
_OPTION_CURES = {
    **dict.fromkeys(("label", "classes"), _OF_LABELS),
    "image": "pass a pattern of files, such as 'photos/*/*_red.png', or stack([...]) for several images per sample",
    **dict.fromkeys(("requests", "bytes_ahead", "local_cache", "local_bytes", "retry_s", "headers"), _OF_URLS),
    **dict.fromkeys(("text", "missing_text"), _OF_TEXTS),
    **dict.fromkeys(("workers", "backend", "batch_size", "shuffle", "pipeline", "device", "transform"), _OF_LOADER),
    "split": "pass the folder of one split, such as 'data/train'; split(source, 0.9) makes a split",
    "root": "it is the folder of relative paths in a list or table; pass the folder itself as the first argument",
}
_BY_SUFFIX = {suffix: cure for suffixes, cure in _CURES.items() for suffix in suffixes}
_OF_SOURCE = ("classes", "fingerprint", "skipped", "__len__", "read", "labels", "path", "describe")
_HOST = re.compile(rb"(localhost|[\w-]+(\.[\w-]+)+)(:\d+)?/", re.ASCII)


def cure_by_name(path: bytes) -> str | None:
    """Return advice for a file of another format, by its suffix; None if unknown.

    A folder is known by a file in it or in its folders.
    """
    for place, name in _few_names(path):
        suffix = os.fsdecode(name.rstrip(b"/")).lower().rpartition(".")[2]
        if suffix in _BY_SUFFIX and (name == path or suffix not in _NOTES):
            where = b"data/*" if name == path else place
            return _BY_SUFFIX[suffix].format(pattern=printable(os.path.join(where, b"*." + os.fsencode(suffix))))
    return None


def _few_names(path: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return some names of files with the pattern of their folder: the path, files in the folder, in its folders."""
    yield path, path
    folders = [(path, path)]
    for _ in range(2):
        below = []
        for folder, place in folders:
            with suppress(OSError), os.scandir(folder) as entries:
                for entry, _ in zip(entries, range(_FEW), strict=False):
                    yield place, entry.name
                    below.append((entry.path, os.path.join(path, b"*")))
        folders = below


def cure_of_missing(path: bytes) -> str:
    """Return advice for a missing path, such as the nearest existing one."""
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
        return f"check the path: {printable(parent)} does not exist either"
    try:
        nearest = difflib.get_close_matches(os.fsdecode(name), map(os.fsdecode, os.listdir(parent or b".")), 1)
    except OSError:
        nearest = []
    if nearest:
        return f"perhaps {printable(os.path.join(parent, os.fsencode(nearest[0])))}"
    return f"check the path; the current folder is {printable(os.getcwdb())}"


def cure_of_option(name: str, known: Collection[str]) -> str | None:
    """Return advice for an option that this kind of data does not have; None if unknown."""
    return _OPTION_CURES.get(name) or cure_of_name(name, known)


def cure_of_object(spec: object) -> str | None:
    """Return what to pass instead of an object that is not data; None if unknown."""
    if getattr(getattr(spec, "dtype", None), "kind", "") in "USO" and hasattr(spec, "tolist"):
        return "pass .tolist() of paths, or (paths, labels)"
    if isinstance(spec, (set, frozenset)):
        return "pass sorted(...) of it, because a set has no order"
    if hasattr(spec, "shape") and hasattr(spec, "dtype"):
        return "pass a pair (images, labels) of arrays"
    if spec is None:
        return "check the variable that it comes from"
    if isinstance(spec, Iterator):
        return "pass list(...) of it, because samples are read by number"
    if isinstance(spec, Mapping):
        return "pass list(data.items()) of {path: label}, a pair (images, labels), or one split, data['train']"
    if hasattr(spec, "batch_sampler"):  # loaders of torch and penstock, and the return value of create_loader
        return "it is a loader: pass the data that it was made from"
    if hasattr(spec, "read") and not isinstance(spec, type):
        lacks = ", ".join(name for name in _OF_SOURCE if not hasattr(spec, name))
        return f"a Source also needs {lacks}" if lacks else None
    if hasattr(spec, "__getitem__") and not isinstance(spec, (type, list, tuple)):
        return "use penstock.loaders.DataLoader; for a data set in memory, pass (dataset.data, dataset.targets)"
    if not isinstance(spec, (list, tuple)):
        return None
    if not spec:
        return "the list is empty"
    if len(spec) == 2 and spec[1] is None:
        return "pass labels, or zeros for unlabelled images: (images, np.zeros(len(images), int))"
    row = spec[0]
    if isinstance(row, (list, tuple)):
        return f"rows must be (path, label), got {shown(row)}: pass [(path, label), ...], or arrays (images, labels)"
    if all(hasattr(part, "shape") for part in spec):
        return "stack images of one size and pass (np.stack(images), labels); write others to a class folder"
    return None
