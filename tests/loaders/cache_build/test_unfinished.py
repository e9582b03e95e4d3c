"""The folder of an unfinished cache: what was written whole comes back, and nothing after the first damage."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.loaders.cache.format import RECORD
from penstock.loaders.cache_build import unfinished
from penstock.loaders.cache_build.unfinished import Block, BuildFolder, read_journal
from penstock.loaders.cache_encode.chunks import Chunk, Task


def chunk(number: int) -> Chunk:
    records = np.zeros(number + 1, RECORD)
    records["length"], records["label"] = 10, number
    payload = bytes([number]) * 10 * (number + 1)
    return Chunk(Task(0, number + 1), records, payload, 77, {"CMYK": number}, {"E-TRUNC": 1})


def write(path: Path, count: int) -> list[int]:
    """A folder of `count` blocks; where the key and each of them end in the journal."""
    folder = BuildFolder(os.fsencode(path), "key")
    for number in range(count):
        folder.append(chunk(number))
    folder.close()
    return [end for _, end in read_journal(os.fsencode(path))]


def resumed(path: Path, key: str = "key") -> list[Block]:
    folder = BuildFolder(os.fsencode(path), key)
    folder.close()
    folder.close()
    return folder.blocks


def test_blocks_come_back_and_are_continued(tmp_path: Path) -> None:
    write(tmp_path / "x", 2)
    folder = BuildFolder(os.fsencode(tmp_path / "x"), "key")
    folder.append(chunk(2))
    folder.close()
    found = resumed(tmp_path / "x")
    assert [(b.num_bytes, b.source_bytes, b.kept, b.bad) for b in found] == [
        (10 * (n + 1), 77, {"CMYK": n}, {"E-TRUNC": 1}) for n in range(3)
    ]
    records = np.concatenate([block.records for block in found])
    assert records["label"].tolist() == [0, 1, 1, 2, 2, 2]
    assert records["offset"].tolist() == list(range(0, 60, 10))


def test_a_cut_anywhere_leaves_the_blocks_before_it(tmp_path: Path) -> None:
    ends, journal = write(tmp_path / "x", 3), tmp_path / "x" / "journal"
    whole = journal.read_bytes()
    assert ends[-1] == len(whole)
    for length in range(len(whole)):
        journal.write_bytes(whole[:length])
        assert len(list(read_journal(os.fsencode(tmp_path / "x")))) == sum(end <= length for end in ends)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_ends_the_journal(tmp_path: Path, bit: int) -> None:
    ends, journal = write(tmp_path / "x", 3), tmp_path / "x" / "journal"
    whole = journal.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        journal.write_bytes(flipped)
        assert len(list(read_journal(os.fsencode(tmp_path / "x")))) == sum(end <= place for end in ends)


def test_without_a_journal_or_with_that_of_another_cache_it_begins_anew(tmp_path: Path) -> None:
    write(tmp_path / "x", 3)
    assert len(resumed(tmp_path / "x")) == 3
    assert resumed(tmp_path / "x", "other") == []
    assert resumed(tmp_path / "x") == []
    write(tmp_path / "y", 3)
    (tmp_path / "y" / "journal").unlink()
    assert resumed(tmp_path / "y") == []
    write(tmp_path / "z", 3)
    (tmp_path / "z" / "journal").write_bytes(b"something else")
    assert resumed(tmp_path / "z") == []


def test_a_folder_that_cannot_be_opened_keeps_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that catches the error of a full disk, and builds elsewhere, must not lose a descriptor each time."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(unfinished, "write_all", full)
    path = os.fsencode(tmp_path / "cache.tmp.x")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no space left"):
        unfinished.BuildFolder(path, "key")
    assert len(os.listdir("/proc/self/fd")) == len(before)
