"""The folder of an unfinished cache: blocks that were written whole come back with all that is known of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from penstock.loaders.cache.format import RECORD
from penstock.loaders.cache_build.unfinished import BuildFolder
from penstock.loaders.cache_encode.chunks import Chunk, Task


def chunk(number: int) -> Chunk:
    records = np.zeros(number + 1, RECORD)
    records["length"], records["label"] = 10, number
    payload = bytes([number]) * 10 * (number + 1)
    return Chunk(Task(0, number + 1), records, payload, 77, {"CMYK": number}, {"E-TRUNC": 1})


def test_blocks_come_back_and_are_continued(tmp_path: Path) -> None:
    for number in range(4):
        folder = BuildFolder(os.fsencode(tmp_path / "x"), "key")
        found = folder.blocks
        if number < 3:
            folder.append(chunk(number))
        folder.close()
        folder.close()
    assert [(b.num_bytes, b.source_bytes, b.kept, b.bad) for b in found] == [
        (10 * (n + 1), 77, {"CMYK": n}, {"E-TRUNC": 1}) for n in range(3)
    ]
    records = np.concatenate([block.records for block in found])
    assert records["label"].tolist() == [0, 1, 1, 2, 2, 2]
    assert records["offset"].tolist() == list(range(0, 60, 10))
