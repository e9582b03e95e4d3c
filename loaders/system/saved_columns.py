"""Keeps column files between runs in the user's cache folder, or in memory where there is none."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, BinaryIO, ClassVar, TypeVar

from penstock.loaders.system.column_file import ColumnFile, Columns, DamagedIndexError, Kinds, write_columns
from penstock.loaders.system.durable_file import replace_file
from penstock.loaders.system.json_file import decode_json
from penstock.pipelines.errors import LoaderError

Opened = TypeVar("Opened")
Open = Callable[[bytes, bool], Opened]  # (path, whether to verify the digest) -> an index; raises DamagedIndexError
Write = Callable[[BinaryIO], None]


class SavedIndex:
    """Map the columns of an index, and read its header; all processes on a machine use the same pages.

    Pickles as the name and digest of its file, which each worker maps.

    Attributes:
        kinds: names of the columns and their types; those of a table with names have one prefix, and equal lengths.
        optional: columns that may be empty.
        header_class: dataclass of the header, with the version of the file as `format`.
        file: the mapped file.
        header: what it says of itself, in the file as JSON.
    """

    kinds: ClassVar[Kinds]
    optional: ClassVar[Collection[str]] = ()
    header_class: ClassVar[type[Any]]
    header: Any

    def __init__(self, path: bytes, verify: bool = True) -> None:
        """Map the index at `path`; `verify` first reads it and compares its digest (40 ms per million files).

        Raises DamagedIndexError, also for a file that is not there.
        """
        self.file = ColumnFile(path, self.kinds, verify=verify)
        try:
            self.header = decode_json(self.file.header, self.header_class)
        except ValueError as error:
            raise DamagedIndexError(f"not an index of this version: {error}") from error
        if self.header.format != self.header_class.format:
            raise DamagedIndexError("not an index of this version")
        for name, column in self.file.columns.items():
            offsets = self.file.columns.get(f"{name.partition('_')[0]}_offsets")
            is_absent = name in self.optional and not len(column)
            if offsets is None or is_absent or name.endswith(("_names", "_offsets")):
                continue
            if len(column) != len(offsets) - 1:
                raise DamagedIndexError("columns of one table differ in length")

    @classmethod
    def write(cls, file: BinaryIO, header: Any, columns: Columns) -> None:
        """Write an index. Raises OSError."""
        write_columns(file, json.dumps(asdict(header)).encode("ascii"), columns, cls.kinds)

    @property
    def is_saved(self) -> bool:
        """Whether the file lies in a folder, and not in memory."""
        return not self.file.path.startswith(b"/proc/")

    @property
    def identity(self) -> str:
        """Hex digest by which another process knows this index."""
        return str(self.header.content)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (type(self), self.file.paths, self.identity)


def cache_folder() -> bytes | None:
    """Return `$XDG_CACHE_HOME/penstock` or `~/.cache/penstock`, created if missing; None if it cannot be trusted.

    A folder of another owner is refused, because an index decides which files are read.
    """
    base = os.environb.get(b"XDG_CACHE_HOME", b"")
    if not os.path.isabs(base):  # the XDG specification says to ignore a relative one
        base = os.path.join(os.path.expanduser(b"~"), b".cache")
    if not os.path.isabs(base):
        return None
    folder = os.path.join(base, b"penstock")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        status = os.stat(folder)
        if status.st_uid != os.geteuid():
            return None
        if status.st_mode & 0o077:
            os.chmod(folder, 0o700)
    except OSError:
        return None
    return folder


def load_saved(name: bytes, open_index: Open[Opened]) -> Opened | None:
    """Open the saved index `name`; None if there is none that is complete and this user's."""
    folder = cache_folder()
    if folder is None:
        return None
    path = os.path.join(folder, name)
    try:
        return open_index(path, True) if os.stat(path).st_uid == os.geteuid() else None
    except (OSError, DamagedIndexError):
        return None


def save_index(name: bytes, write: Write, open_index: Open[Opened]) -> Opened:
    """Save an index with `write` and open it: in the cache folder, or in memory if that cannot be written."""
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError, DamagedIndexError):
            path = os.path.join(folder, name)
            # Leftovers of all data sets: some are never indexed again.
            replace_file(path, write, leftovers=rb"\w+\.index")
            return open_index(path, False)
    return save_in_memory(write, open_index)


def save_in_memory(write: Write, open_index: Open[Opened]) -> Opened:
    """Write an index to a memfd. Workers open it through /proc; nothing is left behind when this process ends."""
    try:
        with open(os.memfd_create("penstock-index", os.MFD_CLOEXEC), "wb") as file:
            write(file)
            return open_index(b"/proc/self/fd/%d" % file.fileno(), False)
    except (OSError, DamagedIndexError) as error:
        raise LoaderError("E-NOSPC", f"there is no place for the index of the data: {error}") from error


def drop_index(file: ColumnFile) -> None:
    """Remove a saved index that is no longer valid, so that the next opening makes it again."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(file.path), os.fstat(file.fd)):  # a newer index in its place may be valid
            os.unlink(file.path)


def _reopen(kind: type[SavedIndex], paths: tuple[bytes, ...], identity: str) -> SavedIndex:
    """Open in another process the first of `paths` that is the wanted index. Raises LoaderError E-STALE if none is.

    paths: the index's name, and the first process's descriptor of it in case it was replaced.
    """
    for path in paths:
        with contextlib.suppress(DamagedIndexError):
            index = kind(path, False)
            if index.identity == identity:
                return index
    cause = "the index of the data is gone, or another process made another one of changed files"
    raise LoaderError("E-STALE", cause, fix="create the loader again")
