"""The journal: what was written whole comes back, and nothing after the first damage."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from penstock.loaders.cache.format import RECORD
from penstock.loaders.cache_build.journal import Block, Journal, read_blocks, read_key


def block(number: int) -> Block:
    records = np.zeros(number + 1, RECORD)
    records["length"], records["label"] = 10, number
    return Block(records, 10 * (number + 1), 1000 + number, 77, {"CMYK": number}, {"E-TRUNC": 1})


def write(path: bytes, count: int) -> list[int]:
    """A journal of `count` blocks; where each of them ends."""
    journal = Journal.create(path, "key")
    for number in range(count):
        journal.append(block(number))
    journal.sync()
    journal.close()
    return [end for _, end in read_blocks(path)]


def same(a: Block, b: Block) -> bool:
    fields = [(x.num_bytes, x.crc, x.source_bytes, x.kept, x.bad) for x in (a, b)]
    return fields[0] == fields[1] and a.records.tobytes() == b.records.tobytes()


def test_blocks_come_back(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "journal")
    write(path, 4)
    known = read_key(path)
    assert known is not None
    assert known[0] == "key"
    found = [found for found, _ in read_blocks(path)]
    assert len(found) == 4
    assert all(same(found[number], block(number)) for number in range(4))


def test_a_cut_anywhere_leaves_the_blocks_before_it(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "journal")
    ends = write(path, 3)
    whole = Path(os.fsdecode(path)).read_bytes()
    assert ends[-1] == len(whole)
    for length in range(len(whole)):
        Path(os.fsdecode(path)).write_bytes(whole[:length])
        assert len(list(read_blocks(path))) == sum(end <= length for end in ends)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_ends_it(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "journal"
    ends = write(os.fsencode(path), 3)
    whole = bytearray(path.read_bytes())
    _, key_end = read_key(os.fsencode(path)) or ("", 0)
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        found = [found for found, _ in read_blocks(os.fsencode(path))]
        known = read_key(os.fsencode(path))
        if known is None:
            assert place < key_end
            assert found == []
        else:
            assert place >= key_end
            assert len(found) == sum(end <= place for end in ends)


def test_it_is_continued_after_a_block(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "journal")
    ends = write(path, 3)
    journal = Journal.reopen(path, ends[1])
    journal.append(block(7))
    journal.close()
    found = [found for found, _ in read_blocks(path)]
    assert [len(block.records) for block in found] == [1, 2, 8]


def test_no_journal_no_key(tmp_path: Path) -> None:
    assert read_key(os.fsencode(tmp_path / "none")) is None
    (tmp_path / "other").write_bytes(b"something else")
    assert read_key(os.fsencode(tmp_path / "other")) is None
