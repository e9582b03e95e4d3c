"""Stores an unfinished cache file: its payload so far and a journal, so that any later builder can resume.

The journal is text: a first line with the key of the cache, then one line per chunk written to the payload. Each line
begins with the CRC-32 of the rest, so a truncated or damaged line ends the journal.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.loaders.cache_build.chunks import Chunk
from penstock.loaders.cache_build.hdf5_frame import PAYLOAD_OFFSET, Tables, write_frame
from penstock.loaders.data.cache.format import RECORD, About, crc32
from penstock.loaders.system.durable_file import open_private, random_name, sync_folder, write_all
from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.json_file import Count, decode_json

SYNC_BYTES = 64 << 20  # written between two syncs: the most that a power cut can lose
_DATA, _JOURNAL = b"data", b"journal"
_READ_BYTES = 1 << 20
_Line = tuple[bytes, Count, Count, Count, dict[str, Count], dict[str, Count]]  # fields of a Block; base 64 in JSON


@dataclass(frozen=True)
class Block:
    """Samples that were stored one after another.

    Attributes:
        records: RECORD [n], with offsets in the payload: each sample's record is followed by those of its masks.
        num_bytes: number of their bytes.
        crc: CRC-32 of their bytes.
        source_bytes: number of their bytes in the source.
        kept: reason -> number of JPEGs stored unchanged.
        bad: error code -> number of images that no decoder can decode.
    """

    records: npt.NDArray[np.void]
    num_bytes: int
    crc: int
    source_bytes: int
    kept: dict[str, int]
    bad: dict[str, int]

    def to_text(self) -> bytes:
        """Return the block as a line of the journal."""
        records = self.records.tobytes()
        return msgspec.json.encode((records, self.num_bytes, self.crc, self.source_bytes, self.kept, self.bad))

    @classmethod
    def from_text(cls, text: bytes) -> Block:
        """Parse a text of to_text(). Raises ValueError for anything else."""
        fields: Any = decode_json(text, _Line)  # type: ignore[arg-type]
        return cls(np.frombuffer(fields[0], RECORD), *fields[1:])


class BuildFolder:
    """Writes to the folder `DEST.tmp.RANDOM`; only for the holder of the cache's lock. Raises OSError.

    Chunks are appended to the file `data`, then to the file `journal`.

    Attributes:
        path: the folder.
        data_path: the file that becomes the cache.
        blocks: the blocks stored so far.
        num_bytes: length of the payload so far.
        num_samples: number of samples so far; each has `num_records` records.
    """

    def __init__(self, path: bytes, key: str, num_records: int = 1) -> None:
        """Resume from the folder at `path` if it belongs to the cache `key`; a missing folder is created."""
        self.path, self.data_path, self._num_records = path, os.path.join(path, _DATA), num_records
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            os.chmod(path, 0o700)
        self.blocks: list[Block] = []
        self.num_bytes = self.num_samples = self._unsynced = 0
        self._journal = -1
        self._fd = open_private(self.data_path, os.O_RDWR)
        try:
            self._journal_end = self._resume(key)
            os.truncate(self._fd, PAYLOAD_OFFSET + self.num_bytes)
            write_all(self._fd, bytes(PAYLOAD_OFFSET), 0)  # not an HDF5 file until it is complete
            self._journal = open_private(os.path.join(path, _JOURNAL), os.O_RDWR)
            os.truncate(self._journal, self._journal_end)
            if self._journal_end == 0:
                self._note(key.encode("ascii"))
        except BaseException:
            self.close()
            raise

    def _resume(self, key: str) -> int:
        """Count the blocks with an intact payload; return the end of the last of them in the journal."""
        end = 0
        for text, line_end in read_journal(self.path):
            if end == 0:
                if text != key.encode("ascii"):
                    break
            else:
                block = Block.from_text(text)
                if not self._reads_back(block, self.num_bytes):
                    break
                self._count(block)
            end = line_end
        return end

    def is_whole(self) -> bool:
        """Return whether the whole payload reads back as it was written."""
        start = 0
        for block in self.blocks:
            if not self._reads_back(block, start):
                return False
            start += block.num_bytes
        return True

    def _reads_back(self, block: Block, start: int) -> bool:
        """Return whether the payload from `start` on matches the block."""
        if (
            len(block.records) == 0
            or len(block.records) % self._num_records
            or int(block.records["length"].sum(dtype=np.int64)) != block.num_bytes
        ):
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
        self.num_samples += len(block.records) // self._num_records

    def append(self, chunk: Chunk) -> None:
        """Store a chunk and set the offsets of its records."""
        records, payload = chunk.records, chunk.payload
        lengths = records["length"].astype(np.int64)
        records["offset"] = self.num_bytes + np.cumsum(lengths) - lengths
        block = Block(records, len(payload), crc32(payload, 0), chunk.source_bytes, chunk.kept, chunk.bad)
        write_all(self._fd, payload, PAYLOAD_OFFSET + self.num_bytes)
        self._note(block.to_text())
        self._count(block)
        self._unsynced += block.num_bytes
        if self._unsynced >= SYNC_BYTES:
            # Bounds the unsynced bytes in memory, and reports a full disk now and not at the end. The order of the two
            # syncs does not matter: the journal contains the payload's CRC.
            os.fdatasync(self._fd)
            os.fdatasync(self._journal)
            self._unsynced = 0

    def _note(self, text: bytes) -> None:
        line = _journal_line(text)
        write_all(self._journal, line, self._journal_end)
        self._journal_end += len(line)

    def records(self) -> npt.NDArray[np.void]:
        """Return the records of all samples so far, then those of their first masks, and so on."""
        found = np.concatenate([block.records for block in self.blocks]) if self.blocks else np.zeros(0, RECORD)
        return np.ascontiguousarray(found.reshape(-1, self._num_records).T).reshape(-1)

    def finish(self, tables: Tables, about: About) -> None:
        """Complete the cache file `data`, and sync it."""
        write_frame(self._fd, tables, about)

    def commit(self, dest: bytes) -> None:
        """Move the finished file to `dest` and remove the folder."""
        self.close()
        os.replace(self.data_path, dest)
        sync_folder(os.path.dirname(dest) or b".")
        remove_folder(self.path)

    def close(self) -> None:
        """Close the files without removing them. Idempotent."""
        descriptors, self._fd, self._journal = (self._fd, self._journal), -1, -1
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)


def _journal_line(text: bytes) -> bytes:
    return b"%08x %s\n" % (crc32(text, 0), text)


def read_journal(folder: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (text, end of its line) for each line of a folder's journal, up to the first damaged one."""
    try:
        file = open(open_regular(os.path.join(folder, _JOURNAL)), "rb")  # noqa: SIM115
    except OSError:
        return  # there is none
    end = 0
    with file:
        for line in file:
            text = line[9:-1]
            if line != _journal_line(text):
                return
            end += len(line)
            yield text, end


def remove_folder(path: bytes) -> None:
    """Remove an unfinished cache; other files in the folder stay."""
    for name in (_DATA, _JOURNAL):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        os.rmdir(path)


def find_folders(dest: bytes) -> list[bytes]:
    """List the folders of unfinished caches of `dest` that this user owns."""
    parent, name = os.path.split(dest)
    pattern = re.compile(re.escape(name) + rb"\.tmp\.[0-9a-f]+")  # earlier versions ended the name with the process id
    found = []
    with os.scandir(parent or b".") as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                # Another user's files would become part of this user's cache.
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                    found.append(entry.path)
    return sorted(found)


def take_folder(dest: bytes, key: str, num_records: int = 1) -> BuildFolder:
    """Return the folder for building `dest`, under its lock: the most advanced unfinished one, or a new one.

    The others are removed: their builders are dead, since this process holds the lock.
    """
    ours = random_name(dest)
    left = find_folders(dest)
    known = [path for path in left if next(read_journal(path), (b"", 0))[0] == key.encode("ascii")]
    best = max(known, key=lambda path: os.path.getsize(os.path.join(path, _JOURNAL)), default=None)
    for path in left:
        if path != best:
            remove_folder(path)
    if best is not None:
        os.rename(best, ours)  # so that a builder that lost its lock but still runs cannot move it into place
    return BuildFolder(ours, key, num_records)
