"""The file behind mapped memory, and files without a name."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.loaders.data.arrow.mapped_memory import MappedMemory, MemoryFile
from penstock.loaders.data.samples.version import Container

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("name", ["plain", "two words", "line\nbreak", "x (deleted)"])
def test_files_are_found_by_the_address_of_their_bytes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(os.urandom(5 * PAGE))
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 3 * PAGE, prot=mmap.PROT_READ, offset=2 * PAGE)
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    found = MappedMemory().find(address + 100, 3 * PAGE - 100)
    if name == "x (deleted)":  # looks like a removed file: its bytes are copied
        assert found is None
        return
    assert found is not None
    assert (found.begin, found.offset) == (address, 2 * PAGE)
    assert found.container == Container.of_file(bytes(path), path.stat())
    assert MappedMemory().find(address + 100, 3 * PAGE) is None
    os.replace(tmp_path / name, tmp_path / "moved")
    moved = MappedMemory().find(address, 10)
    assert moved is not None
    assert moved.container.name == bytes(tmp_path / "moved")
    (tmp_path / "new").write_bytes(bytes(5 * PAGE))
    os.replace(tmp_path / "new", tmp_path / "moved")
    assert MappedMemory().find(address, 10) is None


def test_files_that_are_listed_alike_are_not_confused(tmp_path: Path) -> None:
    (tmp_path / r"a\012b").write_bytes(bytes(PAGE))
    (tmp_path / "a\nb").write_bytes(bytes(PAGE))  # listed with the same text
    for name, is_found in ((r"a\012b", False), ("a\nb", True)):
        with open(tmp_path / name, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        found = MappedMemory().find(np.frombuffer(mapping, np.uint8).ctypes.data, 10)
        assert (found is not None) is is_found


def test_a_mapping_listed_in_parts_counts_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(9 * PAGE))
    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapping.madvise(mmap.MADV_RANDOM, 3 * PAGE, PAGE)  # the kernel now lists three parts
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    found = MappedMemory().find(address + PAGE, 7 * PAGE)
    assert found is not None
    assert (found.begin, found.offset) == (address, 0)


def test_memory_that_is_not_mapped_has_no_file() -> None:
    array = np.zeros(10_000_000, np.uint8)
    assert MappedMemory().find(array.ctypes.data, 10) is None
    assert MappedMemory().find(1, 1) is None


def test_a_file_without_a_name_contains_what_was_appended() -> None:
    file = MemoryFile()
    assert [file.append(b"abc"), file.append(memoryview(b"defg")), file.append(b"")] == [0, 3, 7]
    name, size, version = file.container()
    assert (size, Path(os.fsdecode(name)).read_bytes()) == (7, b"abcdefg")
    assert os.stat(name).st_mtime_ns == version.number


def test_the_mtime_of_a_file_without_a_name_depends_on_its_bytes() -> None:
    files = [MemoryFile() for _ in range(3)]
    for file, parts in zip(files, ([b"ab", b"c"], [b"abc"], [b"abd"]), strict=True):
        for part in parts:
            file.append(part)
    times = [file.container().version.number for file in files]
    assert times[0] == times[1] != times[2]
