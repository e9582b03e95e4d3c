"""Keeps an unfinished cache file: its payload so far and a journal, which any later builder may take up."""

from __future__ import annotations

import contextlib
import os
import re
import stat

import numpy as np
import numpy.typing as npt

from penstock.loaders.cache.format import RECORD, About, crc32
from penstock.loaders.cache_build.hdf5_frame import PAYLOAD_OFFSET, Tables, write_frame
from penstock.loaders.cache_build.journal import Block, Journal, read_blocks, read_key
from penstock.loaders.system.durable_file import open_private, random_name, sync_folder, write_all

SYNC_BYTES = 64 << 20  # written between two waits for the disk: what a power cut may cost
_DATA, _JOURNAL = b"data", b"journal"
_READ_BYTES = 1 << 20


class BuildFolder:
    """Write to the folder `DEST.tmp.RANDOM`, which only the holder of the cache's lock may have. Raises OSError.

    Blocks are appended to the file `data`, then to the file `journal`.
    """

    def __init__(self, path: bytes, key: str) -> None:
        """Go on with what is in the folder at `path`, made where missing, if it is of the cache `key`."""
        self.path = path
        self._data_path, self._journal_path = os.path.join(path, _DATA), os.path.join(path, _JOURNAL)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)
        self.blocks: list[Block] = []
        self.num_bytes = self.num_samples = self._unsynced = 0
        self._fd = open_private(self._data_path, os.O_RDWR)
        self._journal: Journal | None = None
        try:
            known = read_key(self._journal_path)
            end = self._resume(known[1]) if known is not None and known[0] == key else None
            os.truncate(self._fd, PAYLOAD_OFFSET + self.num_bytes)
            write_all(self._fd, bytes(PAYLOAD_OFFSET), 0)  # no HDF5 file until it is one again
            journal = self._journal_path
            self._journal = Journal.create(journal, key) if end is None else Journal.reopen(journal, end)
        except BaseException:
            self.close()
            raise

    def _resume(self, end: int) -> int:
        """Take up the blocks whose payload is what was written; return where the last of them ends in the journal."""
        for block, block_end in read_blocks(self._journal_path):
            if not self._is_whole(block, self.num_bytes):
                break
            self._count(block)
            end = block_end
        return end

    def is_whole(self) -> bool:
        """Return whether all of the payload reads back as it was when it was written."""
        start = 0
        for block in self.blocks:
            if not self._is_whole(block, start):
                return False
            start += block.num_bytes
        return True

    def _is_whole(self, block: Block, start: int) -> bool:
        """Return whether the payload from `start` on is what the block says."""
        if len(block.records) == 0 or int(block.records["length"].sum(dtype=np.int64)) != block.num_bytes:
            return False
        at, left, crc = PAYLOAD_OFFSET + start, block.num_bytes, 0
        while left:
            data = os.pread(self._fd, min(_READ_BYTES, left), at)
            if not data:
                return False
            at, left, crc = at + len(data), left - len(data), crc32(data, crc)
        return crc == block.crc

    def _count(self, block: Block) -> None:
        self.blocks.append(block)
        self.num_bytes += block.num_bytes
        self.num_samples += len(block.records)

    def append(self, block: Block, payload: bytes) -> None:
        """Store a block; `block.records` get their offsets here."""
        assert self._journal is not None
        lengths = block.records["length"].astype(np.int64)
        block.records["offset"] = self.num_bytes + np.cumsum(lengths) - lengths
        write_all(self._fd, payload, PAYLOAD_OFFSET + self.num_bytes)
        self._journal.append(block)
        self._count(block)
        self._unsynced += block.num_bytes
        if self._unsynced >= SYNC_BYTES:
            # Bounds what waits in memory, and tells of a full disk now, not at the end. The order of the two does not
            # matter: the journal holds the payload's CRC.
            os.fdatasync(self._fd)
            self._journal.sync()
            self._unsynced = 0

    def records(self) -> npt.NDArray[np.void]:
        """Return the records of all samples so far, RECORD [n]."""
        return np.concatenate([block.records for block in self.blocks]) if self.blocks else np.zeros(0, RECORD)

    @property
    def data_path(self) -> bytes:
        """The file that becomes the cache."""
        return self._data_path

    def finish(self, tables: Tables, about: About) -> None:
        """Make a whole cache file of `data`, synced."""
        write_frame(self._fd, tables, about)

    def commit(self, dest: bytes) -> None:
        """Put the finished file at `dest` and remove the folder."""
        self.close()
        os.replace(self._data_path, dest)
        sync_folder(os.path.dirname(dest) or b".")
        remove_folder(self.path)

    def close(self) -> None:
        """Let go of the files, which stay. Idempotent."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def remove_folder(path: bytes) -> None:
    """Remove an unfinished cache; anything else that lies there stays."""
    for name in (_DATA, _JOURNAL):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)


def find_folders(dest: bytes) -> list[bytes]:
    """List the folders of unfinished caches of `dest` that are this user's own."""
    parent, name = os.path.split(dest)
    pattern = re.compile(re.escape(name) + rb"\.tmp\.[0-9a-f]+")  # earlier versions ended it with the process's number
    found = []
    with os.scandir(parent or b".") as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                # What someone else put there would become part of this user's cache.
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                    found.append(entry.path)
    return sorted(found)


def take_folder(dest: bytes, key: str) -> BuildFolder:
    """Take the folder for building `dest`, under its lock: the most advanced of those that were left, or a new one.

    The others are removed: their builders are dead, or the lock would not be ours.
    """
    ours = random_name(dest)
    left = find_folders(dest)
    known = [path for path in left if (read_key(os.path.join(path, _JOURNAL)) or ("",))[0] == key]
    best = max(known, key=lambda path: os.path.getsize(os.path.join(path, _JOURNAL)), default=None)
    for path in left:
        if path != best:
            remove_folder(path)
    if best is not None:
        os.rename(best, ours)  # so that one that is alive after all, behind a lock that it lost, cannot put it in place
    return BuildFolder(ours, key)
