"""The frame of a cache file: any h5py opens it, the payload is at the promised offset, and half a file is not HDF5."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import cache_files
import h5py
import numpy as np
import pytest

from penstock.loaders.cache_build import hdf5_frame as hdf5_write
from penstock.loaders.cache_build.hdf5_frame import PAYLOAD_OFFSET, frame_bytes, is_cache_file, write_frame
from penstock.loaders.data.cache.format import About
from penstock.loaders.data.cache.hdf5_layout import SIGNATURE
from penstock.pipelines.errors import LoaderError


def write(path: Path, payload: bytes, rows: int) -> tuple[dict[str, Any], About]:
    datasets = cache_files.tables([cache_files.file_item(b"%d" % row) for row in range(rows)])
    datasets["payload"] = np.frombuffer(payload, np.uint8)
    about = About.unpack(bytes(cache_files.about_of(datasets)))
    tables = {name: data for name, data in datasets.items() if name != "payload"}
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, payload, PAYLOAD_OFFSET)
        write_frame(fd, tables, about)
    finally:
        os.close(fd)
    return tables, about


@pytest.mark.parametrize("rows", [1, 90, 100, 5000])
@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 4097, 70001, 3_000_000])
def test_any_h5py_reads_the_file(tmp_path: Path, rows: int, num_bytes: int) -> None:
    payload = np.random.default_rng(num_bytes).integers(0, 256, num_bytes, np.uint8).tobytes()
    path = tmp_path / "x.h5"
    tables, about = write(path, payload, rows)
    with h5py.File(path, "r") as file:
        assert set(file) == {"payload", "samples", "names", "name_ends", "about"}
        assert file["payload"].id.get_offset() == PAYLOAD_OFFSET
        assert bytes(file["payload"][:num_bytes]) == payload
        assert not file["payload"][num_bytes:].any()
        for name, table in tables.items():
            assert file[name].dtype == table.dtype
            np.testing.assert_array_equal(file[name][:], table)
        assert About.unpack(bytes(file["about"][:])) == about
    assert path.stat().st_size <= max(num_bytes, 4096) + PAYLOAD_OFFSET + frame_bytes(tables)


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", b"payload" * 1000, 200)
    time.sleep(1.01 - time.time() % 1)  # HDF5 stores times in seconds
    write(tmp_path / "b.h5", b"payload" * 1000, 200)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_data_behind_the_payload_is_removed(tmp_path: Path) -> None:
    fresh, used = tmp_path / "a.h5", tmp_path / "b.h5"
    used.write_bytes(b"\xff" * 3_000_000)
    write(fresh, b"p" * 9000, 300)
    write(used, b"p" * 9000, 300)
    assert used.read_bytes()[PAYLOAD_OFFSET:] == fresh.read_bytes()[PAYLOAD_OFFSET:]


def test_the_signature_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "x.h5", []

    def look(fd: int) -> None:
        seen.append(path.read_bytes()[: len(SIGNATURE)])

    monkeypatch.setattr(hdf5_write.os, "fsync", look)
    write(path, b"p" * 9000, 300)
    assert seen == [bytes(len(SIGNATURE)), SIGNATURE]


def test_another_layout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_write, "_ALIGNMENT", 8192)
    with pytest.raises(LoaderError, match=r"E-CACHE.*would place the payload at 8192"):
        write(tmp_path / "x.h5", b"p" * 9000, 3)


def test_a_damaged_cache_is_still_recognised_by_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    write(path, b"p" * 9000, 300)
    assert is_cache_file(os.fsencode(path))
    path.write_bytes(path.read_bytes()[:5000])
    assert is_cache_file(os.fsencode(path))
    for name, content in {"empty": b"", "text": b"penstock cache 1" * 1000, "zeros": bytes(9000)}.items():
        (tmp_path / name).write_bytes(content[1:])
        assert not is_cache_file(os.fsencode(tmp_path / name))
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["payload"] = np.zeros(9000, np.uint8)
    assert not is_cache_file(os.fsencode(tmp_path / "foreign.h5"))


def test_small_tables_do_not_overwrite_the_mark(tmp_path: Path) -> None:
    """HDF5 puts tables that just exceed a block of metadata into the gap before the payload."""
    datasets = cache_files.tables([cache_files.file_item(b"x")] * 38)
    for length in range(2030, 2070, 4):
        names = {"names": np.full(length, ord("n"), np.uint8), "name_ends": np.full(38, length, "<i8")}
        about = About.unpack(bytes(cache_files.about_of({**datasets, **names})))
        path = tmp_path / f"{length}.h5"
        with open(path, "wb+") as file:
            write_frame(
                file.fileno(), {name: data for name, data in (datasets | names).items() if name != "payload"}, about
            )
        assert is_cache_file(os.fsencode(path))
        with h5py.File(path, "r") as cache:
            assert bytes(cache["names"][:]) == b"n" * length
