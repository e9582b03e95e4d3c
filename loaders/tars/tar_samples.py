"""Groups the members of a tar into samples, as WebDataset does, and finds the image of each."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from penstock.loaders.sources.folder_scan import FOREIGN_FOLDERS, HIDDEN, IMAGE_SUFFIXES, OTHER_SUFFIX
from penstock.loaders.tars.tar_headers import Member, TarReader

# Photos before formats without loss, in which masks are stored. The others of IMAGE_SUFFIXES follow.
_PREFERRED = (b"jpg", b"jpeg", b"jpe", b"webp")
_FOREIGN = frozenset(name.encode() for name in FOREIGN_FOLDERS)
Sample = dict[bytes, Member]  # suffix in small letters -> member; never empty


def sample_key(name: bytes) -> bytes:
    """Return the key of a member: its name up to the first dot behind the last slash."""
    dot = name.find(b".", name.rfind(b"/") + 1)
    return name if dot < 0 else name[:dot]


def group_members(reader: TarReader) -> Iterator[tuple[bytes, Sample]]:
    """Yield key and members of each sample of a tar: of neighbours whose names have the same key (`sample_key`).

    A suffix that comes again begins a new sample, and so does a key that comes again later: two samples may share a
    key. Hidden files, files in hidden folders and names without a suffix belong to no sample and are counted.
    """
    key, sample = b"", Sample()
    for member in reader.members():
        name = member.name
        slash = name.rfind(b"/") + 1
        dot = name.find(b".", slash)
        if dot <= slash or _is_hidden(name[:slash]):
            reader.skipped[OTHER_SUFFIX if dot < 0 else HIDDEN] += 1
            continue
        suffix = name[dot + 1 :].lower()
        if name[:dot] != key or suffix in sample:
            if sample:
                yield key, sample
            key, sample = name[:dot], {}
        sample[suffix] = member
    if sample:
        yield key, sample


def choose_image(sample: Sample, wanted: Sequence[bytes] = ()) -> Member | None:
    """Return the image of a sample: the first of the suffixes `wanted`; otherwise the first by format.

    Formats in order: JPEG, WebP, then the others of IMAGE_SUFFIXES as they come. A suffix that is a format comes before
    one that ends in it: a.png before a.mask.jpg.
    """
    for suffix in wanted or _PREFERRED:
        if suffix in sample:
            return sample[suffix]
    images = [] if wanted else [suffix for suffix in sample if _is_image(suffix)]
    return sample[min(images, key=_rank)] if images else None


def count_images(sample: Sample) -> int:
    """Return how many members of a sample are images."""
    return sum(map(_is_image, sample))


@functools.lru_cache(1024)
def _is_image(suffix: bytes) -> bool:
    return "." + suffix.rpartition(b".")[2].decode("latin-1") in IMAGE_SUFFIXES


def _rank(suffix: bytes) -> tuple[bool, int]:
    last = suffix.rpartition(b".")[2]
    return b"." in suffix, _PREFERRED.index(last) if last in _PREFERRED else len(_PREFERRED)


@functools.lru_cache(1024)
def _is_hidden(folder: bytes) -> bool:
    parts = folder.split(b"/")
    return any(part in _FOREIGN or (part.startswith(b".") and part not in (b".", b"..")) for part in parts)
