"""Tables with locations of files and stored images: random tables as numpy reads them, damaged ones within bounds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from native_tests import at_the_end_of_memory

from penstock.pipelines.native import locate
from penstock.pipelines.native.locate import FileTables
from penstock.pipelines.native.rows import ELSEWHERE, FILE, ROW

_MAX_BYTES = 1000
_NAME_BYTES = 1 << 16


@pytest.fixture(autouse=True)
def _this_library(native: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "native_library", lambda: native)


def random_tables(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the columns of a folder's index with random names, each of a random width."""

    def unsigned(values: np.ndarray) -> np.ndarray:
        """Return a column of a random width, between zeros that would look like valid entries."""
        return np.pad(values.astype(rng.choice(["<u2", "<u4", "<u8"])), 8)[8:-8]

    folders, files = int(rng.integers(1, 5)), int(rng.integers(1, 30))
    ends = {what: np.cumsum([0, *rng.integers(0, 40, count)]) for what, count in (("f", folders), ("n", files))}
    return {
        "folder_offsets": unsigned(ends["f"]),
        "container_offsets": unsigned(ends["n"]),
        "container_folders": unsigned(rng.integers(0, folders, files)),
        "container_sizes": unsigned(rng.integers(0, 2 * _MAX_BYTES, files)),
        "container_versions": rng.integers(0, 1 << 62, files).astype("<u8"),
        "folder_names": rng.integers(97, 123, ends["f"][-1]).astype(np.uint8),
        "container_names": rng.integers(97, 123, ends["n"][-1]).astype(np.uint8),
    }


def name_of(tables: dict[str, np.ndarray], what: str, number: int) -> tuple[int, int] | None:
    """Return where a name begins and its length; None if it is invalid."""
    begin, end = (int(tables[f"{what}_offsets"][at].astype(np.int64)) for at in (number, number + 1))
    is_sound = 0 <= begin <= end <= len(tables[f"{what}_names"]) and end - begin < _NAME_BYTES
    return (begin, end - begin) if is_sound else None


def check(tables: dict[str, np.ndarray], samples: list[int]) -> int:
    """Compare rows with numpy's, and return the number of invalid names."""
    rows, broken = np.zeros(len(samples), ROW), 0
    assert FileTables(tables).locate(np.array(samples), rows, _MAX_BYTES)
    for row, sample in zip(rows, samples, strict=True):
        folder, name = (
            name_of(tables, "folder", int(tables["container_folders"][sample])),
            name_of(tables, "container", sample),
        )
        size = int(tables["container_sizes"][sample])
        assert row["size"] == row["file_size"] == size
        assert row["mtime_ns"] == tables["container_versions"][sample]
        assert row["kind"] == (FILE if size <= _MAX_BYTES else ELSEWHERE)
        if folder is None or name is None:
            broken += 1
            assert row["name_bytes"] == 0
        else:
            assert (row["folder"], row["folder_bytes"], row["name"], row["name_bytes"]) == (*folder, *name)
    return broken


def test_random_tables() -> None:
    rng, broken = np.random.default_rng(0), 0
    for _ in range(300):
        tables = random_tables(rng)
        files = len(tables["container_folders"])
        assert check(tables, rng.integers(0, files, 8).tolist()) == 0
        for what in ("container", "folder"):  # a wrong offset: too small, after the names, negative
            lying = {name: column.copy() for name, column in tables.items()}
            offsets = lying[f"{what}_offsets"] = lying[f"{what}_offsets"].astype("<u8")
            at, length = int(rng.integers(0, len(offsets))), len(lying[f"{what}_names"])
            offsets[at] = rng.choice(np.array([0, length, length + 1, length + 70_000, 1 << 40, (1 << 64) - 1], "u8"))
            broken += check(lying, list(range(files)))
    assert broken > 500


@pytest.mark.parametrize("length", [_NAME_BYTES - 1, _NAME_BYTES])
def test_a_name_longer_than_any_system_opens(length: int) -> None:
    tables = random_tables(np.random.default_rng(1))
    tables |= {
        "container_names": np.full(length, 97, np.uint8),
        "container_offsets": np.array([0, length, length], "<u4"),
    }
    tables |= {name: tables[name][:2] for name in ("container_folders", "container_sizes", "container_versions")}
    assert check(tables, [0, 1]) == (length == _NAME_BYTES)


def test_a_file_of_exactly_the_limit_is_read() -> None:
    tables = random_tables(np.random.default_rng(3))
    for size, kind in ((_MAX_BYTES - 1, FILE), (_MAX_BYTES, FILE), (_MAX_BYTES + 1, ELSEWHERE)):
        rows = np.zeros(1, ROW)
        sized = tables | {"container_sizes": np.full(len(tables["container_sizes"]), size, "<u4")}
        assert FileTables(sized).locate(np.array([0]), rows, _MAX_BYTES)
        assert rows["kind"].tolist() == [kind]


def test_samples_and_folders_that_are_not_in_the_tables() -> None:
    tables = random_tables(np.random.default_rng(2))
    files, folders = len(tables["container_folders"]), len(tables["folder_offsets"]) - 1
    for sample in (-1, files, 1 << 40):
        assert not FileTables(tables).locate(np.array([0, sample]), np.zeros(2, ROW), _MAX_BYTES)
    for folder in (folders, folders + 1, (1 << 64) - 1):
        lying = tables | {"container_folders": np.full(files, folder, "<u8")}
        assert not FileTables(lying).locate(np.array([0]), np.zeros(1, ROW), _MAX_BYTES)


def test_records_outside_a_cache_are_not_read(native: ctypes.CDLL) -> None:
    records = at_the_end_of_memory(bytes(42 * 3))
    for sample, found in ((0, True), (2, True), (3, False), (-1, False), (1 << 58, False)):
        rows = np.zeros(1, ROW)
        assert locate.locate_stored(records.ctypes.data, 3, (7, 0), np.array([sample]), rows) == found
