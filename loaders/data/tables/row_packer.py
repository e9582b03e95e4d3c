"""Packs rows of paths and labels into columns, a few bytes per row."""

from __future__ import annotations

import hashlib
import os
import posixpath
from array import array
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

import numpy as np
import numpy.typing as npt

from penstock.loaders.data.labels.collect_texts import NO_TEXTS, RAISE, TextOptions
from penstock.loaders.data.labels.label_rows import LabelRows
from penstock.loaders.data.labels.row_errors import Fail, RowOrigin
from penstock.loaders.data.remote.object_store import is_url
from penstock.loaders.data.remote.path_or_url import absolute, join
from penstock.loaders.data.samples.samples_writer import PackedNames
from penstock.pipelines.errors import printable
from penstock.pipelines.messages.checked import shown

_CHUNK = 1024  # paths joined at once
NO_LABEL = object()  # stands for a label if there is no label column
_FILE_URL = b"file://"


class RowPacker:
    """Collects rows in their order: the name of each file, its folder, its label.

    Attributes:
        labels: labels of the rows; empty if the rows have none.
        names: file names.
        folder_of: for each row, the number of its folder in `folders`.
        folders: absolute path or URL of each folder, with a slash at the end -> its number.
    """

    def __init__(
        self,
        classes: object = None,
        *,
        are_names: bool = False,
        missing_labels: str = RAISE,
        text: TextOptions = NO_TEXTS,
    ) -> None:
        self.labels = LabelRows(classes, are_names=are_names, missing_labels=missing_labels, text=text)
        self.names = PackedNames()
        self.folder_of = array("I")
        self.folders: dict[bytes, int] = {}
        self._begin = b""  # beginning of all folders: a slash, or a protocol
        self.begin(RowOrigin(), None)

    def begin(self, fail: Fail, base: bytes | None) -> None:
        """Set `fail`, which makes errors, and `base`, the folder of relative paths (default "."), of the next rows."""
        self._fail, self._base = fail, absolute(base or b".")
        self._written: dict[bytes, int] = {}  # folder as written in the rows -> its number

    def __len__(self) -> int:
        return len(self.folder_of)

    def add(self, path: object, label: object, row: int) -> None:
        """Add a row: the path of an image, its label (NO_LABEL for none), and its number in error texts.

        Raises LoaderError E-FORMAT.
        """
        text = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else self._encode(path, row)
        if text[:1] == b"~" or b":/" in text or b"\0" in text:
            text = self._expand(text, row)
        query = text.find(b"?")  # a query may contain slashes
        cut = text.rfind(b"/", 0, query if query >= 0 and is_url(text) else len(text)) + 1
        if cut == len(text):
            cause = f"{printable(text)} is the path of a folder" if text else "no path"
            raise self._fail(row, cause, "every row needs the path of an image")
        folder = self._written.get(text[:cut])
        self.folder_of.append(self._add_folder(text[:cut], row) if folder is None else folder)
        if label is not NO_LABEL:
            self.labels.add(label, self._fail, row)
        self.names.append(text[cut:])

    def leave_out(self, rows: npt.NDArray[np.bool_]) -> None:
        """Drop the paths of some of the rows (bool [rows])."""
        kept = np.flatnonzero(~rows)
        self.names = self.names.take(kept)
        used, numbers = np.unique(np.frombuffer(self.folder_of, np.uint32)[kept], return_inverse=True)
        self.folder_of = array("I", numbers.tolist())
        folders = list(self.folders)
        self.folders = {folders[number]: new for new, number in enumerate(used.tolist())}

    def chunks(self) -> Iterator[tuple[list[int], list[bytes]]]:
        """Yield folder numbers and names of the rows, in chunks."""
        for first in range(0, len(self), _CHUNK):
            rows = range(first, min(first + _CHUNK, len(self)))
            yield self.folder_of[first : first + _CHUNK].tolist(), [self.names[row] for row in rows]

    def digest(self) -> bytes:
        """Return a digest of the paths of the rows."""
        digest = hashlib.blake2b(b"\0".join(self.folders), digest_size=16)
        for part in (self.folder_of, self.names.ends, self.names.text):
            digest.update(part)
        return digest.digest()

    def _encode(self, path: object, row: int) -> bytes:
        if isinstance(path, (str, bytes, os.PathLike)):
            return os.fsencode(path)
        raise self._fail(row, f"a path must be a string, got {shown(path)}", "every row needs a path")

    def _expand(self, path: bytes, row: int) -> bytes:
        if b"\0" in path:
            raise self._fail(row, f"the path {printable(path)} contains a zero byte")
        if path.startswith(_FILE_URL):
            host, slash, below = path[len(_FILE_URL) :].partition(b"/")
            if host not in (b"", b"localhost"):
                raise self._fail(row, f"{printable(path)} is on another host", "pass file:///path")
            return slash + unquote_to_bytes(below)
        return os.path.expanduser(path)

    def _add_folder(self, written: bytes, row: int) -> int:
        path = join(self._base, written)
        if is_url(path):
            scheme, _, below = path.partition(b"://")
            begin = scheme.lower() + b"://"
            if not is_url(written) or b"/../" in below:
                below = posixpath.normpath(below)
        else:
            begin, below = b"/", path
        if self._begin not in (b"", begin):
            cause = f"{printable(path)} in a list of {'files' if self._begin == b'/' else self._begin.decode()}"
            raise self._fail(row, cause, "make one list per protocol, open each with open_source, and pass them all")
        self._begin = begin
        # Not normpath: a/../b is not b if a is a link. Keys of object storage are not changed.
        parts = [part for part in below.removesuffix(b"/").split(b"/") if begin != b"/" or part not in (b"", b".")]
        path = begin + b"".join(part + b"/" for part in parts)
        self._written[written] = number = self.folders.setdefault(path, len(self.folders))
        return number
