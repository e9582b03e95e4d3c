"""Keeps an unfinished cache file: its payload so far and a journal, with which any later builder may continue.

The journal is text: a first line with the key of the cache, then a line for each chunk whose payload was written. Each
line begins with the CRC-32 of the rest, so a line that is cut off or damaged ends the journal.
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

SYNC_BYTES = 64 << 20  # written between two waits for the disk: what a power cut may cost
_DATA, _JOURNAL = b"data", b"journal"
_READ_BYTES = 1 << 20
_Line = tuple[bytes, Count, Count, Count, dict[str, Count], dict[str, Count]]  # of a Block; JSON has base 64


@dataclass(frozen=True)
class Block:
    """Describe samples that were stored one after another.

    Attributes:
        records: RECORD [n], with offsets in the payload: of each sample, and of its masks behind it.
        num_bytes: length of their bytes.
        crc: CRC-32 of their bytes.
        source_bytes: what they took in the source.
        kept: reason -> how many JPEGs were stored as they were.
        bad: error code -> how many images no decoder can decode.
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
        """Read what to_text() wrote. Raises ValueError for anything else."""
        fields: Any = decode_json(text, _Line)  # type: ignore[arg-type]
        return cls(np.frombuffer(fields[0], RECORD), *fields[1:])


class BuildFolder:
    """Write to the folder `DEST.tmp.RANDOM`, which only the holder of the cache's lock may have. Raises OSError.

    Chunks are appended to the file `data`, then to the file `journal`.

    Attributes:
        path: the folder.
        data_path: the file that becomes the cache.
        blocks: what is stored so far.
        num_bytes: length of the payload so far.
        num_samples: number of samples so far, each of which has `num_records`.
    """

    def __init__(self, path: bytes, key: str, num_records: int = 1) -> None:
        """Continue with what is in the folder at `path`, made where missing, if it belongs to the cache `key`."""
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
        """Count the blocks whose payload is what was written; return where the last of them ends in the journal."""
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
        """Return whether the payload from `start` on is what the block says."""
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
        """Store a chunk; its records get their offsets here."""
        records, payload = chunk.records, chunk.payload
        lengths = records["length"].astype(np.int64)
        records["offset"] = self.num_bytes + np.cumsum(lengths) - lengths
        block = Block(records, len(payload), crc32(payload, 0), chunk.source_bytes, chunk.kept, chunk.bad)
        write_all(self._fd, payload, PAYLOAD_OFFSET + self.num_bytes)
        self._note(block.to_text())
        self._count(block)
        self._unsynced += block.num_bytes
        if self._unsynced >= SYNC_BYTES:
            # Bounds what waits in memory, and reports a full disk now, not at the end. The order of the two does not
            # matter: the journal holds the payload's CRC.
            os.fdatasync(self._fd)
            os.fdatasync(self._journal)
            self._unsynced = 0

    def _note(self, text: bytes) -> None:
        line = _journal_line(text)
        write_all(self._journal, line, self._journal_end)
        self._journal_end += len(line)

    def records(self) -> npt.NDArray[np.void]:
        """Return the records of all samples so far, then those of the first mask of each, and so on."""
        found = np.concatenate([block.records for block in self.blocks]) if self.blocks else np.zeros(0, RECORD)
        return np.ascontiguousarray(found.reshape(-1, self._num_records).T).reshape(-1)

    def finish(self, tables: Tables, about: About) -> None:
        """Make a whole cache file of `data`, synced."""
        write_frame(self._fd, tables, about)

    def commit(self, dest: bytes) -> None:
        """Put the finished file at `dest` and remove the folder."""
        self.close()
        os.replace(self.data_path, dest)
        sync_folder(os.path.dirname(dest) or b".")
        remove_folder(self.path)

    def close(self) -> None:
        """Close the files, which stay. Idempotent."""
        descriptors, self._fd, self._journal = (self._fd, self._journal), -1, -1
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)


def _journal_line(text: bytes) -> bytes:
    return b"%08x %s\n" % (crc32(text, 0), text)


def read_journal(folder: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (text, where its line ends) of each line of a folder's journal, up to the first that is damaged."""
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


def take_folder(dest: bytes, key: str, num_records: int = 1) -> BuildFolder:
    """Take the folder for building `dest`, under its lock: the most advanced of those that were left, or a new one.

    The others are removed: their builders are dead, or the lock would not be ours.
    """
    ours = random_name(dest)
    left = find_folders(dest)
    known = [path for path in left if next(read_journal(path), (b"", 0))[0] == key.encode("ascii")]
    best = max(known, key=lambda path: os.path.getsize(os.path.join(path, _JOURNAL)), default=None)
    for path in left:
        if path != best:
            remove_folder(path)
    if best is not None:
        os.rename(best, ours)  # so that a builder that lost its lock, but still runs, cannot put it in place
    return BuildFolder(ours, key, num_records)
