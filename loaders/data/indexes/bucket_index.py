"""An index kept next to the data in a bucket or a folder, which all nodes read instead of asking the storage."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, TypeVar

import numpy as np

from penstock.loaders.data.files.path_patterns import AnyPath
from penstock.loaders.data.labels.collect_texts import RAISE
from penstock.loaders.data.remote.access import DEFAULT, Access
from penstock.loaders.data.remote.object_store import ObjectStore, is_url
from penstock.loaders.data.remote.path_or_url import HTTP, absolute, read_whole
from penstock.loaders.data.remote.remote_object import RemoteObject
from penstock.loaders.data.remote.url_patterns import is_url_folder, is_url_pattern, split_specs
from penstock.loaders.data.samples.columns import SavedColumns
from penstock.loaders.data.samples.file_stats import Show, Stats
from penstock.loaders.data.samples.once_per_node import once_per_node
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.version import Version
from penstock.loaders.system.durable_file import replace_file
from penstock.loaders.system.json_file import ByteText, Count, decode_json
from penstock.loaders.system.progress_bar import SHOW_AFTER_S, ProgressBar
from penstock.loaders.system.saved_columns import (
    DIGEST_BYTES,
    DamagedIndexError,
    SavedIndex,
    cache_folder,
    load_saved,
    save_index,
)
from penstock.pipelines.errors import LoaderError, printable
from penstock.pipelines.messages.checked import shown

MANIFEST = b"penstock-index.json"
TARS, FOLDER, IMAGES = "tar files", "a folder of images", "a list of images"  # kinds of indexed data
PART_BYTES, _REQUESTS = 4 << 20, 16  # bytes per request of a download, and requests at once
CHUNK = 1 << 14
_NAME, _DIGEST = re.compile(r"[\w-]+\.index"), re.compile("[0-9a-f]{64}")
WRITE_IT = "write it again with penstock index DATA --out PLACE"
_OPTIONS = ("image", "label", "classes", "missing_labels", "text", "missing_text")  # that decide the content
Saved = TypeVar("Saved", bound=SavedIndex)


@dataclass(frozen=True)
class IndexFile:
    """A file of an index: its name, which contains its digest, and its size."""

    name: str
    num_bytes: Count
    digest: str

    def __post_init__(self) -> None:
        if not (_NAME.fullmatch(self.name) and _DIGEST.fullmatch(self.digest)):  # they become names of files here
            raise ValueError("a file of the index has an unusual name or digest")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an index in a bucket was made of. It contains no absolute address.

    Attributes:
        kind: TARS, FOLDER or IMAGES.
        specs: paths or patterns of the data, relative to its root; none for a list or a table.
        below: folder of the samples, relative to the root.
        made_by: identity of the options that decide the content.
        options: these options, in words.
        samples, labels: the files; labels only if they are not class numbers.
    """

    kind: str
    specs: list[ByteText]
    below: ByteText
    made_by: str
    options: dict[str, str]
    samples: IndexFile
    labels: IndexFile | None = None
    format: int = 1


@dataclass(frozen=True, kw_only=True)
class BucketIndex:
    """An index read from a bucket or a folder.

    Attributes:
        place: URL or path of its folder, with a slash at the end.
        manifest: what it was made of.
        samples: its samples; names of containers are relative to the root of the data.
        labels: the labels that are not class numbers.
        root: folder or URL of the data.
    """

    place: bytes
    manifest: Manifest
    samples: Samples
    labels: SavedColumns | None = None
    root: bytes = b""

    def of(self, specs: Sequence[bytes]) -> BucketIndex:
        """Return the index for the data `specs`, which may be in a mirror of the storage that was indexed.

        Raises LoaderError E-MISUSE if it was made of other patterns or names.
        """
        if self.manifest.specs and not all(map(is_url, specs)):
            raise ValueError("index= can only be used for data at URLs")
        if not self.manifest.specs and any(is_url_folder(spec) or is_url_pattern(spec) for spec in specs):
            raise self._refuse("it was made of a list or a table")
        root, relative = split_specs(specs)
        own, given = self.manifest.specs, [spec.decode("utf-8", "surrogateescape") for spec in relative]
        if own and own != given:
            raise self._refuse(f"it was made of {_in_words(own)}, not of {_in_words(given)}")
        below = self.manifest.below.encode("utf-8", "surrogateescape")
        return replace(self, root=root + (b"/" + below if below else b""))

    def check_kind(self, kind: str) -> None:
        """Raise LoaderError E-MISUSE for data of another kind."""
        if self.manifest.kind != kind:
            raise self._refuse(f"it was made of {self.manifest.kind}, not of {kind}")

    def of_tars(self, made_by: str, options: Mapping[str, Any]) -> tuple[Samples, SavedColumns | None]:
        """Return the samples of tars, and their labels that are not class numbers; `options` for the message.

        Raises LoaderError E-MISUSE for an index that was made with other options.
        """
        self.check_kind(TARS)
        if self.manifest.made_by != made_by:
            was, now = (", ".join(map("=".join, of.items())) for of in (self.manifest.options, in_words(options)))
            raise self._refuse(f"it was made with {was or 'default options'}, not with {now or 'default options'}")
        return self.samples, self.labels

    def objects(self) -> dict[bytes, RemoteObject]:
        """Return sizes and versions of the objects of a pattern or a folder, by URL."""
        found = self.samples
        names = (self.root + b"/" + name for some in self._names() for name in some)
        versions = map(Version.of_stored_object, found.versions.tolist())
        return dict(zip(names, map(RemoteObject, found.container_sizes.tolist(), versions), strict=True))

    def _names(self) -> Iterator[list[bytes]]:
        total = self.samples.num_containers
        return (self.samples.container_names(np.arange(at, min(at + CHUNK, total))) for at in range(0, total, CHUNK))

    def look_up(self, prefix: bytes, chunks: Iterable[list[bytes]], show: Show = lambda done: None) -> Stats:
        """Return sizes and versions of the objects prefix + name, as stat_places does, without asking the storage.

        Raises LoaderError E-MISUSE if the names are not those of the index, in its order.
        """
        self.check_kind(IMAGES)
        if not is_url(prefix):
            raise ValueError("index= can only be used for data at URLs")
        done, total = 0, self.samples.num_containers
        for names in chunks:
            known = self.samples.container_names(np.arange(done, min(done + len(names), total)))
            named = [name.partition(b"?")[0] for name in names] if prefix.lower().startswith(HTTP) else names
            if named != known:
                pairs = enumerate(zip(named, known, strict=False))
                row = next((row for row, (one, other) in pairs if one != other), len(known))
                own = printable(known[row]) if row < len(known) else "absent"
                raise self._refuse(f"image {done + row:,} is {printable(named[row])}, in the index it is {own}")
            done += len(names)
            show(done)
        if done != total:
            raise self._refuse(f"it has {total:,} images, these are {done:,}")
        sizes, versions = self.samples.container_sizes, self.samples.versions
        times = array("q", self.samples.times.tobytes())
        return array("Q", sizes.astype(np.uint64).tobytes()), array("q", versions.tobytes()), times

    def _refuse(self, cause: str) -> LoaderError:
        fix = f"pass the index of this data, or {WRITE_IT}"
        return LoaderError("E-MISUSE", f"the index belongs to other data: {cause}", fix=fix, path=self.place)


def _in_words(specs: Sequence[str]) -> str:
    some = ", ".join(printable(spec or "a whole folder") for spec in specs[:2])
    return some + (f" and {len(specs) - 2:,} more" if len(specs) > 2 else "")


def in_words(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that decide the content of an index, in words without paths; the defaults are left out."""
    given = {name: options.get(name) for name in _OPTIONS if options.get(name) not in (None, RAISE)}
    return {name: "a table" if _is_table(value) else shown(value) for name, value in given.items()}


def _is_table(value: object) -> bool:
    return isinstance(value, (Mapping, os.PathLike)) or (isinstance(value, str) and "/" in value)


def as_folder(place: AnyPath) -> bytes:
    """Return the URL or absolute path of the folder of an index, with a slash at the end."""
    return absolute(os.path.expanduser(os.fsencode(place))).rstrip(b"/") + b"/"


def read_bucket_index(place: AnyPath, access: Access = DEFAULT) -> BucketIndex:
    """Return the index in a bucket or a folder; one rank of a node downloads it to the user's cache folder.

    Raises LoaderError: E-MISSING without an index, E-CORRUPT for a damaged one, and as ObjectStore.
    """
    folder = as_folder(place)
    name = hashlib.blake2b(b"penstock bucket index" + folder, digest_size=16).hexdigest().encode() + b".index"
    with once_per_node(name, "reading the index") as is_done:
        about = (_load_manifest(name) if is_done else None) or _read_manifest(folder, name, access)
        samples = _open_file(folder, about.samples, Samples, access, verify=not is_done)
        other = about.labels
        labels = None if other is None else _open_file(folder, other, SavedColumns, access, verify=not is_done)
    return BucketIndex(place=folder, manifest=about, samples=samples, labels=labels)


def _load_manifest(name: bytes) -> Manifest | None:
    """Return the manifest that another rank saved."""
    try:
        with open(os.path.join(cache_folder() or b"", name), "rb") as file:
            return decode_json(file.read(), Manifest)
    except (OSError, ValueError):
        return None


def _read_manifest(folder: bytes, name: bytes, access: Access) -> Manifest:
    """Return the manifest in a folder or at a URL; save it for other ranks."""
    try:
        text = read_whole(folder + MANIFEST, access)
    except LoaderError as error:
        if error.code != "E-MISSING":
            raise
        raise LoaderError("E-MISSING", "there is no index here", fix=WRITE_IT, path=folder) from None
    try:
        about = decode_json(text, Manifest)
        known = {TARS, FOLDER, IMAGES}
        if about.format != Manifest.format or about.kind not in known:
            raise ValueError(f"format {about.format}, kind {about.kind!r}")
    except ValueError as error:
        cause = f"the index is not one of this version: {error}"
        raise LoaderError("E-CORRUPT", cause, fix=WRITE_IT, path=folder + MANIFEST) from None
    saved = cache_folder()
    if saved is not None:
        before = _load_manifest(name)
        for file in (before.samples, before.labels) if before is not None else ():
            if file is not None and file not in (about.samples, about.labels):  # processes that mapped it keep it
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(saved, _name_download(file)))
        with contextlib.suppress(OSError):  # a full disk: other ranks read it again
            replace_file(os.path.join(saved, name), text)
    return about


def _name_download(about: IndexFile) -> bytes:
    return f"bucket_{about.digest}.index".encode()


def _open_file(folder: bytes, about: IndexFile, kind: type[Saved], access: Access, *, verify: bool) -> Saved:
    """Map a file of an index; one at a URL is downloaded first, once."""
    place = folder + about.name.encode()

    def open_checked(path: bytes, verify: bool) -> Saved:
        index = kind(path, verify)
        if os.pread(index.file.fd, DIGEST_BYTES, max(0, about.num_bytes - DIGEST_BYTES)).hex() != about.digest:
            raise DamagedIndexError("the digest differs")
        return index

    if not is_url(folder):
        try:
            return open_checked(place, verify)
        except DamagedIndexError as error:
            raise LoaderError("E-CORRUPT", f"the index is damaged: {error}", fix=WRITE_IT, path=place) from None
    name = _name_download(about)
    found = load_saved(name, open_checked, verify=verify)
    return found or save_index(name, partial(_download, place, about, access), open_checked)


def _download(place: bytes, about: IndexFile, access: Access, file: BinaryIO) -> None:
    """Write an object to an empty file. Raises LoaderError E-CORRUPT if it is not the expected one."""
    store, digest, url = ObjectStore(access), hashlib.blake2b(digest_size=DIGEST_BYTES), place.decode()
    starts = iter(range(0, about.num_bytes, PART_BYTES))
    content_bytes, done, last = about.num_bytes - DIGEST_BYTES, 0, b""

    def fetch(start: int) -> memoryview:
        return memoryview(store.read(url, start, min(PART_BYTES, about.num_bytes - start)).data).cast("B")

    what = f"reading the index {printable(place)}"
    with ProgressBar(what, about.num_bytes, show_after_s=SHOW_AFTER_S) as bar, ThreadPoolExecutor(_REQUESTS) as pool:
        coming = deque(pool.submit(fetch, start) for start in islice(starts, _REQUESTS))
        while coming:
            part = coming.popleft().result()
            coming.extend(pool.submit(fetch, start) for start in islice(starts, 1))
            digest.update(part[: max(0, content_bytes - done)])
            last += bytes(part[max(0, content_bytes - done) :])
            file.write(part)
            done += len(part)
            bar.show(done)
    if not digest.digest() == last == bytes.fromhex(about.digest):
        raise LoaderError("E-CORRUPT", "the index is damaged: the digest differs", fix=WRITE_IT, path=place)
