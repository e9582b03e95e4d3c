"""HDF5 is used only to locate the five datasets of a cache file."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from cache_files import about_of, pixel_item, tables, write_cache

from penstock.loaders import LoaderError
from penstock.loaders.data.cache.format import RECORD
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.cache.hdf5_layout import read_layout

ITEMS = [pixel_item(np.full((40, 30, 3), number, np.uint8)) for number in range(4)]


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "good.h5", ITEMS)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A file that blocks forever when opened: following a link to it would exceed the test's time limit."""
    path = tmp_path / "trap"
    os.mkfifo(path)
    return path


def write_all(file: h5py.File, *, but: str) -> dict[str, np.ndarray]:
    datasets = tables(ITEMS)
    datasets["about"] = about_of(datasets)
    for name, data in datasets.items():
        if name != but:
            file.create_dataset(name, data=data)
    return datasets


def external_storage(file: h5py.File, trap: Path) -> None:
    data = write_all(file, but="payload")["payload"]
    file.create_dataset("payload", (len(data),), "u1", external=[(str(trap), 0, h5py.h5f.UNLIMITED)])


def external_link(file: h5py.File, trap: Path) -> None:
    write_all(file, but="payload")
    file["payload"] = h5py.ExternalLink(str(trap), "/payload")


def soft_link_through_a_group(file: h5py.File, trap: Path) -> None:
    data = write_all(file, but="payload")["payload"]
    del file["names"]
    file.create_group("names").create_dataset("inner", data=data)
    file["payload"] = h5py.SoftLink("/names/inner")


def virtual_dataset(file: h5py.File, trap: Path) -> None:
    data = write_all(file, but="payload")["payload"]
    layout = h5py.VirtualLayout((len(data),), "u1")
    layout[:] = h5py.VirtualSource(str(trap), "payload", (len(data),))
    file.create_virtual_dataset("payload", layout)


def shape_bomb(file: h5py.File, trap: Path) -> None:
    write_all(file, but="samples")
    file.create_dataset("samples", (1 << 40,), RECORD)  # allocated late: takes no space


def chunked_bomb(file: h5py.File, trap: Path) -> None:
    write_all(file, but="payload")
    file.create_dataset("payload", (1 << 42,), "u1", chunks=(1 << 20,), compression="gzip")


def one_dataset_too_many(file: h5py.File, trap: Path) -> None:
    write_all(file, but="")
    file.create_dataset("more", data=[1])


def a_group(file: h5py.File, trap: Path) -> None:
    write_all(file, but="payload")
    file.create_group("payload")


def another_type(file: h5py.File, trap: Path) -> None:
    datasets = write_all(file, but="samples")
    file.create_dataset("samples", data=datasets["samples"]["offset"])


def variable_length_text(file: h5py.File, trap: Path) -> None:
    write_all(file, but="about")
    file.create_dataset("about", data=["x" * 100], dtype=h5py.string_dtype())


ATTACKS = {
    external_storage: "payload is not stored as one run",
    external_link: "payload is missing or a link",
    soft_link_through_a_group: "payload is missing or a link",
    virtual_dataset: "payload is not stored as one run",
    shape_bomb: "samples does not lie within",
    chunked_bomb: "payload is not stored as one run",
    one_dataset_too_many: "6 entries",
    a_group: "payload is not a dataset",
    another_type: "samples has the type int64",
    variable_length_text: "about has the type object",
}


def test_the_datasets_of_a_sound_file_are_located(good: Path) -> None:
    fd = os.open(good, os.O_RDONLY)
    try:
        layout = read_layout(fd)
        data = good.read_bytes()
    finally:
        os.close(fd)
    expected = tables(ITEMS)
    for name, array in expected.items():
        offset, num_bytes, num_items = layout[name]
        assert (data[offset : offset + num_bytes], num_items) == (array.tobytes(), len(array))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_crafted_file_is_refused_before_its_data_is_read(
    tmp_path: Path, trap: Path, attack: Callable[[h5py.File, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "attack.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        attack(file, trap)
    path.chmod(0o600)
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: (reads.append(size), pread(fd, size, at))[1])
    with pytest.raises(LoaderError, match=ATTACKS[attack]) as caught:
        open_cache(path)
    assert (caught.value.code, caught.value.exit_code) == ("E-CACHE", 4)
    assert reads == [8]  # the signature


@pytest.mark.parametrize("size", [0, 7, 8, 100, 3000])
def test_a_file_that_is_not_hdf5_is_refused(tmp_path: Path, good: Path, size: int) -> None:
    path = tmp_path / "other.h5"
    path.write_bytes(b"\0" * size)
    with pytest.raises(LoaderError, match=r"E-CACHE.*no HDF5 signature"):
        open_cache(path)
    path.write_bytes(good.read_bytes()[:size])
    with pytest.raises(LoaderError, match="E-CACHE"):
        open_cache(path)


def test_hdf5_locks_are_neither_required_nor_acquired(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(good, "rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)  # HDF5 treats it as a writer
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(good, "r", locking=True)
        for value in ("TRUE", "FALSE"):
            monkeypatch.setenv("HDF5_USE_FILE_LOCKING", value)
            assert len(open_cache(good)) == 4


def test_a_missing_h5py_is_reported_in_one_line(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(LoaderError, match=r"E-DEPENDENCY.*h5py.*fix=pip install") as caught:
        open_cache(good)
    assert caught.value.exit_code == 7
