"""Derives the sample key and the role of a tar member from its name."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from penstock.loaders.data.files.folder_scan import FOREIGN_FOLDERS
from penstock.loaders.data.files.left_out import IMAGE_SUFFIXES, JPEG_SUFFIXES, SIDECAR, UNREAD_SUFFIXES, explain_name
from penstock.loaders.data.tars.tar_labels import LabelPlace

# Photo formats before lossless formats, which often store masks.
_FORMATS = ("jpg", "jpeg", "jpe", *sorted(suffix[1:] for suffix in JPEG_SUFFIXES - {".jpg", ".jpeg", ".jpe"}))
_FORMATS += ("webp", "png", "bmp", "gif", "tif", "tiff")
assert {f".{name}" for name in _FORMATS} == IMAGE_SUFFIXES
EVERY = b"*."  # prefix of a suffix for which every image is a separate sample, whatever other dots its name has
_DOTTED, UNREAD, NO_RANK = 100, 1000, 1 << 30
_FOREIGN = frozenset(name.encode() for name in FOREIGN_FOLDERS)
_DIGITS = re.compile(rb"\d+")


class Role(NamedTuple):
    """The role of a member in its sample.

    Attributes:
        rank: rank of an image: the lowest is the sample's image; from UNREAD on, the format is not read. NO_RANK for
            other members.
        places: numbers of its label places.
        is_dotted: whether its suffix has a dot.
        is_json: whether these places are JSON files, or fields of a JSON object.
        is_longer: whether `places` match only the last part of its suffix, as in b"left.cls".
        is_sidecar: whether it does not need an image.
    """

    rank: int
    places: tuple[int, ...]
    is_dotted: bool
    is_json: bool
    is_longer: bool
    is_sidecar: bool


def find_role(suffix: bytes, wanted: Sequence[bytes], places: Sequence[LabelPlace]) -> Role:
    """Return the role of members with a suffix.

    Images have the suffixes `wanted`, in this order; if there are none, JPEG, WebP, then other formats. A suffix that
    is a format precedes one that ends in a format: a.png before a.mask.jpg. places: where labels may be.
    """
    suffix = suffix.lower()
    last = suffix.rpartition(b".")[2]
    text = last.decode("latin-1")
    rank = NO_RANK
    if wanted:
        rank = wanted.index(suffix) if suffix in wanted else NO_RANK
    elif text in _FORMATS:
        jpeg_is_one = 0 if "." + text in JPEG_SUFFIXES else _FORMATS.index(text)
        rank = _FORMATS.index(text) if suffix == last else _DOTTED + jpeg_is_one
    elif "." + text in UNREAD_SUFFIXES:
        rank = UNREAD
    of_suffix = tuple(number for number, place in enumerate(places) if place.suffix == suffix)
    of_last = () if of_suffix else tuple(number for number, place in enumerate(places) if place.suffix == last)
    found = of_suffix or of_last
    is_json = any(places[number].suffix == b"json" for number in found)
    is_sidecar = (is_json or not of_suffix) and explain_name("x." + text) == SIDECAR and last not in wanted
    return Role(rank, found, suffix != last, is_json, bool(of_last), is_sidecar)


def sample_key(name: bytes, *, whole: bool = False) -> bytes:
    """Return the key of a member: its name up to the first dot after the last slash; `whole`: up to the last dot."""
    slash = name.rfind(b"/") + 1
    dot = name.rfind(b".", slash) if whole else name.find(b".", slash)
    return name if dot < 0 else name[:dot]


def plain_key(name: bytes, *, whole: bool) -> bytes:
    """Return the key of a member without the b"./" that some programs write."""
    return sample_key(name, whole=whole).removeprefix(b"./")


def split_series(name: bytes) -> tuple[bytes, bytes]:
    """Return the part of a name between its first dot and its last, and the same with # for numbers."""
    middle = name[name.rfind(b"/") + 1 :].partition(b".")[2].rpartition(b".")[0]
    return middle, _DIGITS.sub(b"#", middle)


@functools.lru_cache(1024)
def is_hidden(folder: bytes) -> bool:
    """Return whether members in this folder are hidden, or were left by a file system or an archiver."""
    parts = folder.split(b"/")
    return any(part in _FOREIGN or (part.startswith(b".") and part not in (b".", b"..")) for part in parts)
