"""Keeps the journal of an unfinished cache: which samples lie in its payload, so that building can go on."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.loaders.cache.format import RECORD, crc32
from penstock.loaders.system.durable_file import open_private, write_all
from penstock.loaders.system.file_read import open_regular
from penstock.loaders.system.json_file import Count, decode_json

_FRAME = struct.Struct("<4sII")  # magic, bytes that follow, their CRC-32
_MAGIC = b"PJ01"
_BlockFields = tuple[Count, Count, Count, dict[str, Count], dict[str, Count]]  # of a Block, after its records


@dataclass(frozen=True)
class Block:
    """Describe samples that were stored one after another.

    Attributes:
        records: RECORD [n], with offsets in the payload.
        num_bytes: length of their bytes.
        crc: CRC-32 of their bytes.
        source_bytes: what they took in the source.
        kept: reason -> how many JPEGs were stored as they were.
        bad: error code -> how many images no decoder takes.
    """

    records: npt.NDArray[np.void]
    num_bytes: int
    crc: int
    source_bytes: int
    kept: dict[str, int] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)


class Journal:
    """Write blocks to a file, each with a CRC: what is cut off or damaged ends what is read. Raises OSError."""

    def __init__(self, fd: int, end: int) -> None:
        self._fd, self._end = fd, end

    @classmethod
    def create(cls, path: bytes, key: str) -> Journal:
        """Make an empty journal of the cache that `key` stands for."""
        journal = cls(open_private(path, os.O_RDWR | os.O_TRUNC), 0)
        journal._put(key.encode("ascii"))
        return journal

    @classmethod
    def reopen(cls, path: bytes, end: int) -> Journal:
        """Open the journal at `path`, to be continued after the block that ends at `end`."""
        fd = open_private(path, os.O_RDWR)
        os.truncate(fd, end)
        return cls(fd, end)

    def append(self, block: Block) -> None:
        """Note a block whose payload is written."""
        fields = [block.num_bytes, block.crc, block.source_bytes, block.kept, block.bad]
        self._put(json.dumps(fields).encode("ascii") + b"\n" + block.records.tobytes())

    def _put(self, body: bytes) -> None:
        write_all(self._fd, _FRAME.pack(_MAGIC, len(body), crc32(body, 0)) + body, self._end)
        self._end += _FRAME.size + len(body)

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)


def read_key(path: bytes) -> tuple[str, int] | None:
    """Read (key, where it ends) of the journal at `path`; None where there is no such file or it is damaged."""
    try:
        with open(open_regular(path), "rb") as file:
            body, end = next(_bodies(file.read(4096)))
    except (OSError, StopIteration):
        return None
    return body.decode("ascii", "replace"), end


def read_blocks(path: bytes) -> Iterator[tuple[Block, int]]:
    """Yield (block, where it ends in the journal) up to the first that is damaged. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read()
    frames = _bodies(data)
    next(frames, None)  # the key
    for body, end in frames:
        text, _, rows = body.partition(b"\n")
        yield Block(np.frombuffer(rows, RECORD), *decode_json(text, _BlockFields)), end  # type: ignore[arg-type]


def _bodies(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (body, end) of each frame, up to the first that is damaged."""
    start = 0
    while start + _FRAME.size <= len(data):
        magic, length, crc = _FRAME.unpack_from(data, start)
        body = data[start + _FRAME.size : start + _FRAME.size + length]
        if magic != _MAGIC or len(body) != length or crc32(body, 0) != crc:
            return
        start += _FRAME.size + length
        yield body, start
