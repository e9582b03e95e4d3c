"""Finds and reads the pictures of samples (masks, image targets): files, or the images of another source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.fields.join import find_partners, refuse_repeated, sample_stems, stem
from penstock.loaders.data.files.content_probe import probe_ranges
from penstock.loaders.data.files.left_out import IMAGE_SUFFIXES, JPEG_SUFFIXES
from penstock.loaders.data.samples.columns import ArrayColumn, BytesColumn
from penstock.loaders.data.samples.file_stats import stat_files
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.data.sources.contract import Source, content_of, refresh_source, sample_name
from penstock.loaders.data.sources.data import find_whole
from penstock.loaders.data.sources.source_faults import call_by_name
from penstock.loaders.system.file_read import read_error
from penstock.pipelines.errors import LoaderError, count_text, printable
from penstock.pipelines.fields.masks import decode_mask
from penstock.pipelines.messages.checked import shown
from penstock.pipelines.messages.user_warnings import warn_user

_CHUNK = 32  # files per task of a thread
_LOOKED_AT = 8  # number of pictures tried: in a data set of binary masks, each is binary


class PictureFiles:
    """A column of files, one per sample."""

    def __init__(self, paths: Iterable[bytes]) -> None:
        self._paths = BytesColumn(list(map(os.path.abspath, paths)))

    def digest(self) -> bytes:
        """Return a digest of the files' names below their common folder, their sizes, and some of their bytes.

        It does not include that folder: a copy of the data elsewhere has the same digest.
        """
        paths = self._list()
        root = len(os.path.commonpath(list(map(os.path.dirname, paths)))) if paths else 0
        digest = hashlib.blake2b(b"\0".join(path[root:] for path in paths), digest_size=16)
        sizes = _stat(paths)[:, 0]
        digest.update(np.ascontiguousarray(sizes).data)
        digest.update(probe_ranges(paths, np.zeros_like(sizes), sizes.clip(0)))
        return digest.digest()

    def content(self) -> bytes:
        """Return a digest of the files' sizes and modification times."""
        return hashlib.blake2b(_stat(self._list()).data, digest_size=16).digest()

    def _list(self) -> list[bytes]:
        return list(map(self._paths.read, range(len(self._paths))))

    def path(self, index: int, _sample: bytes = b"") -> bytes:
        """Return the path of the file of sample `index`."""
        return self._paths.read(index)

    def read(self, index: int) -> bytes:
        """Return the content of the file of sample `index`. Raises LoaderError as read_error, with its path."""
        path = self.path(index)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise read_error(error, path) from error


class PictureSource:
    """A column of the images `numbers` (int64 [n]) of another source."""

    def __init__(self, pictures: Source, numbers: npt.NDArray[np.int64]) -> None:
        self._pictures, self._numbers = pictures, ArrayColumn(numbers)

    def read(self, index: int) -> bytes | npt.NDArray[Any]:
        """Return the picture of sample `index`."""
        return self._pictures.read(int(self._numbers.take(index)))

    def path(self, index: int, _sample: bytes = b"") -> bytes:
        """Return the name of the picture of sample `index` in error texts."""
        return self._pictures.path(int(self._numbers.take(index)))

    def content(self) -> bytes:
        """Return a digest that covers the modification times of the pictures' files."""
        return hashlib.blake2b(content_of(refresh_source(self._pictures)).encode(), digest_size=16).digest()

    def digest(self) -> bytes:
        """Return a digest that identifies the pictures."""
        return hashlib.blake2b(self._pictures.fingerprint.encode() + self._numbers.digest(), digest_size=16).digest()


def find_pictures(source: Source, where: object, what: str = "mask") -> PictureFiles | BytesColumn | PictureSource:
    """Return the pictures of a source's samples.

    where: a folder, in which each has the name of its image, with any suffix; a pattern of paths, such as
    "masks/{name}_seg.png", where {name} is the image's name without its suffix; a function of the image's name; a list
    of paths; or a Source with the pictures as images of the same names or keys. what: word for a picture in messages.
    Raises ValueError.
    """
    if isinstance(where, Source):
        return PictureSource(where, find_partners(source, where, what))
    if callable(where):
        found = _as_paths(call_by_name(source, where), what)
        cure = "return a separate one for each, or pass a list with one path per sample"
        refuse_repeated(map(os.fsdecode, found), lambda index: printable(source.path(index)), "samples", cure, what)
        return _check_first(source, PictureFiles(found), what)
    if isinstance(where, (list, tuple, BytesColumn)):
        if len(where) != len(source):
            raise ValueError(f"{what}s must be one path per sample ({len(source):,}), got {len(where):,}")
        if isinstance(where, BytesColumn):
            return where
        _warn_of_other_order(source, paths := _as_paths(where, what), what)
        return _check_first(source, PictureFiles(paths), what)
    if not isinstance(where, (str, os.PathLike)):
        raise ValueError(f"{what}s must be a folder, pattern, function, list, array or Source, got {shown(where)}")
    text = os.fspath(where)
    if "://" in text:
        raise ValueError(
            f"{what}s cannot be read from {printable(text)}: pass a local folder, or open_source(...) of {what}s that "
            "are images"
        )
    if "{name}" in text:
        found = [os.fsencode(text.replace("{name}", name)) for name in sample_stems(source, f"{what}s")]
        return _check_first(source, PictureFiles(found), what)
    return PictureFiles(_find_in_folder(source, text, what))


def sample_names(source: Source) -> Iterable[str]:
    """Yield the name of each sample as text."""
    return (os.fsdecode(sample_name(source, index)) for index in range(len(source)))


def whole_names(source: Source) -> Iterator[str]:
    """Yield the names of all samples of the whole data behind `source`."""
    for whole in find_whole(source):
        yield from sample_names(whole)


def _as_paths(values: Sequence[Any], what: str) -> list[bytes]:
    for index, path in enumerate(values):
        if not isinstance(path, (str, bytes, os.PathLike)):
            numbers = "integers [n, height, width]" if what == "mask" else "numbers [n, height, width, channels]"
            cure = f"pass {what}s in memory as one array of {numbers}"
            raise ValueError(f"the {what} of sample {index} must be a path, got {shown(path)}: {cure}")
    return list(map(os.fsencode, values))


def _warn_of_other_order(source: Source, paths: Sequence[bytes], what: str) -> None:
    """Warn of a list in which pictures have the names of other samples: glob lists files in any order."""
    names = [stem(os.path.basename(name)) for name in sample_names(source)]
    others = [stem(os.path.basename(os.fsdecode(path))) for path in paths]
    if names == others or len(known := set(others)) < len(others):
        return
    wrong = [
        index for index, (name, other) in enumerate(zip(names, others, strict=True)) if name != other and name in known
    ]
    if wrong:
        index = wrong[0]
        first = f"sample {index} ({printable(sample_name(source, index))}): {printable(paths[index])}"
        warn_user(
            f"the {what}s of {len(wrong):,} of {count_text(len(names), 'sample')} have the names of others, first "
            f"{first}: sort both lists, or pass the folder of the {what}s"
        )


def _check_first(source: Source, files: PictureFiles, what: str) -> PictureFiles:
    """Return `files` after checking only that the first one exists. Raises ValueError."""
    if len(source) and not os.path.exists(files.path(0)):
        name = printable(sample_name(source, 0))
        raise ValueError(f"no {what} for sample 0 ({name}): {printable(files.path(0))} does not exist")
    return files


def _stat(paths: list[bytes]) -> npt.NDArray[np.int64]:
    """Return size and modification time of each file, int64 [n, 2]; -1 and 0 for a missing one."""
    chunks = (paths[first : first + _CHUNK] for first in range(0, len(paths), _CHUNK))
    stats = np.stack([np.array(each, np.int64) for each in stat_files(b"", chunks)[:2]], 1)
    stats[stats[:, 1] == MISSING.number] = -1, 0
    return stats


def _find_in_folder(source: Source, folder: str, what: str) -> Iterable[bytes]:
    """Yield the path of each sample's picture: of files with one name, the possible one, not a mask's photo or JSON."""
    can_be = _SUFFIXES[what]
    names: dict[str, str] = {}
    for parent, _, files in os.walk(folder, followlinks=True):
        for file in sorted(sorted(files, reverse=True), key=lambda file: _suffix(file) in can_be):
            name = os.path.relpath(os.path.join(parent, file), folder)
            other = names.get(stem(name))
            if other is not None and _suffix(other) in can_be and _suffix(file) in can_be:
                both = f"{printable(other)} and {printable(name)}"
                raise ValueError(f"two {what}s have the same name in {printable(folder)}: {both}; remove one of them")
            names[stem(name)] = name
    for index, name in enumerate(sample_stems(source, f"{what}s")):
        found = names.get(name)
        if found is None:
            why = f"it must be named {name}.png" if os.path.isdir(folder) else "there is no such folder"
            called = printable(sample_name(source, index))
            raise ValueError(f"no {what} for sample {index} ({called}) in {printable(folder)}: {why}")
        yield os.fsencode(os.path.join(folder, found))


_SUFFIXES = {
    "mask": IMAGE_SUFFIXES - JPEG_SUFFIXES,
    "target": IMAGE_SUFFIXES | {".npy"},
}  # JPEG changes values of masks


def _suffix(file: str) -> str:
    return os.path.splitext(file)[1].lower()


def few_samples(count: int) -> list[int]:
    """Return the numbers of a few of `count` samples, spread over all of them, the first one first."""
    some: list[int] = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(int)).tolist()
    return some


def warn_of_ignored_foreground(name: str, read: Callable[[int], Any], count: int, ignore_index: int) -> None:
    """Warn if masks contain only 0 and `ignore_index`, like binary masks of 0 and 255: no pixel would count.

    read: returns the mask of a sample, encoded or as an array. Unreadable masks are ignored: serving them reports the
    error.
    """
    found: set[int] = set()
    try:
        for index in few_samples(count):
            found |= set(np.unique(decode_mask(read(index))).tolist())
            if not found <= {0, ignore_index}:
                return
    except (LoaderError, OSError, ValueError):
        return
    if ignore_index and found == {0, ignore_index}:
        warn_user(
            f"field {name!r}: the masks contain only 0 and {ignore_index}, and {ignore_index} is their ignore_index, "
            "so a loss ignores the foreground: save it as 1, or pass Masks(..., ignore_index=254)"
        )
