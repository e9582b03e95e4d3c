"""Reads of a cache file: what they return; damage is never served as an image."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import re
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from cache_files import about_of, file_item, pixel_item, tables, write_cache
from forked_child import ForkedChild
from photo_folder import photo

from penstock.loaders import LoaderError
from penstock.loaders.data.cache.format import SCHEMA, STRIPS
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.cache.shards import MANIFEST
from penstock.loaders.data.sources.contract import Source, is_cache
from penstock.loaders.front.open_source import open_source

RNG = np.random.default_rng(3)
PIXELS = [RNG.integers(0, 256, (20 + 9 * k, 31 + 5 * k, 3), np.uint8) for k in range(6)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_cache(tmp_path / "cache.h5", [pixel_item(p, label=k % 2) for k, p in enumerate(PIXELS)])


def test_a_cache_is_recognized_as_a_source_by_its_suffix(path: Path) -> None:
    cache = open_source(path)
    assert isinstance(cache, Source)
    assert is_cache(cache)
    assert len(cache) == 6
    assert cache.labels(np.array([0, 1, 5])).tolist() == [0, 1, 1]
    assert cache.classes == (b"one", b"two\xff")
    assert cache.path(3) == os.fsencode(path) + b":class/3.jpg"
    assert cache.fingerprint == "ab" * 32
    assert "6 images, 2 classes" in cache.describe()
    assert "raw, lossless" in cache.describe()


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [photo(number) for number in range(3)]
    cache, pread = open_cache(write_cache(tmp_path / "files.h5", [file_item(data) for data in files])), os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 1000), at))
    assert [bytes(cache.read(number)) for number in range(3)] == files


def test_pixels_are_read_whole_with_their_orientation(tmp_path: Path) -> None:
    path = write_cache(tmp_path / "cache.h5", [pixel_item(p, orientation=k + 1) for k, p in enumerate(PIXELS)])
    cache = open_cache(path)
    for index, pixels in enumerate(PIXELS):
        assert np.array_equal(cache.read(index), pixels)
        assert cache.stored_orientation(index) == index + 1


def test_no_hdf5_handle_stays_open_after_opening(path: Path) -> None:
    gc.collect()  # release what errors of other tests still reference
    before, others = len(os.listdir("/proc/self/fd")), h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)
    cache = open_cache(path)
    assert h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE) == others
    cache.read(0)
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # the file, the tables and their mapping
    del cache
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_replaced_cache_is_stale_in_a_worker(path: Path) -> None:
    cache = open_cache(path)
    again = pickle.loads(pickle.dumps(cache.files[0]))
    assert again.read(0, 4) == cache.files[0].read(0, 4)
    other = write_cache(path.with_name("other.h5"), [pixel_item(PIXELS[0])])
    os.replace(other, path)
    assert np.array_equal(cache.read(5), PIXELS[5])
    with pytest.raises(LoaderError, match=r"E-STALE.*replaced"):
        pickle.loads(pickle.dumps(cache.files[0])).read(0, 4)


def test_a_file_that_shrinks_gives_an_error_not_a_crash(path: Path) -> None:
    cache = open_cache(path)
    os.truncate(path, 4096)
    with pytest.raises(LoaderError, match=r"E-CACHE.*sample=5.*shorter"):
        cache.read(5)


STRANGE: dict[str, Callable[[np.ndarray], object]] = {
    "offset beyond the payload": lambda r: r["offset"].__setitem__(0, 1 << 40),
    "negative offset": lambda r: r["offset"].__setitem__(0, -1),
    "longer than the payload": lambda r: r["length"].__setitem__(2, 0xFFFFFFFF),
    "head longer than the image": lambda r: r["head"].__setitem__(1, r["length"][1] + 1),
    "unknown kind": lambda r: r["kind"].__setitem__(1, 7),
    "no width": lambda r: r["width"].__setitem__(1, 0),
    "another width": lambda r: r["width"].__setitem__(1, 5),
    "strips without rows": lambda r: r["strip_rows"].__setitem__(1, 0),
    "label without a class": lambda r: r["label"].__setitem__(1, 2),
    "negative label": lambda r: r["label"].__setitem__(1, -1),
    "orientation 9": lambda r: r["orientation"].__setitem__(1, 9),
    "pixels declared as strips": lambda r: r["kind"].__setitem__(1, STRIPS),
}


@pytest.mark.parametrize("name", STRANGE)
def test_impossible_records_are_refused(tmp_path: Path, name: str) -> None:
    datasets = tables([pixel_item(p) for p in PIXELS])
    STRANGE[name](datasets["samples"])
    with pytest.raises(LoaderError, match=r"E-CACHE.*is invalid"):
        open_cache(_write(tmp_path / "strange.h5", datasets))


def _write(path: Path, datasets: dict[str, Any], about: Any = None) -> Path:
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        for key, data in {**datasets, "about": about_of(datasets) if about is None else about}.items():
            file.create_dataset(key, data=data)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": SCHEMA + 1}, "schema 2 has 0 fields"),
        ({"schema": SCHEMA + 2}, "schema is 3"),
        ({"samples": 5}, "tables have 6 and 6 rows"),
        ({"payload_bytes": 1 << 30}, "payload is shorter"),
        ({"digests": {}}, "digest of the table samples"),
        ({"encoding": {"kind": "tiff"}}, "impossible settings"),
        ({"encoding": {"kind": "raw", "bits": 3}}, "impossible settings"),
        ({"classes": []}, "is invalid"),
    ],
)
def test_an_about_text_that_does_not_match_the_file_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    datasets = tables([pixel_item(p) for p in PIXELS])
    with pytest.raises(LoaderError, match=f"E-CACHE.*{words}"):
        open_cache(_write(tmp_path / "strange.h5", datasets, about_of(datasets, **changes)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_other_users_are_refused_unless_trusted(path: Path) -> None:
    os.chown(path, 12345, -1)
    with pytest.raises(LoaderError, match=r"E-CACHE.*another user.*copy it.*open_source\(path, any_owner=True\)"):
        open_cache(path)
    assert len(open_cache(path, any_owner=True)) == 6
    shutil.copyfile(path, path.with_name("copy.h5"))  # the other fix that the error proposes
    assert len(open_cache(path.with_name("copy.h5"))) == 6


@pytest.mark.parametrize(("bit", "who"), [(stat.S_IWOTH, "every user"), (stat.S_IWGRP, "its group")])
def test_a_file_that_others_may_write_is_refused(path: Path, bit: int, who: str) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode | bit)
    with pytest.raises(LoaderError, match=rf"E-CACHE.*{who}.* may write.*chmod go-w"):
        open_cache(path)
    assert len(open_cache(path, any_owner=True)) == 6
    path.chmod(mode | stat.S_IRGRP | stat.S_IROTH)
    assert len(open_cache(path)) == 6


def test_a_cache_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.h5")
    with pytest.raises(LoaderError, match="not a regular file"):
        open_cache(tmp_path / "fifo.h5")
    with pytest.raises(LoaderError, match="E-MISSING"):
        open_cache(tmp_path / "nothing.h5")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_a_manifest_that_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / os.fsdecode(MANIFEST))
    with pytest.raises(LoaderError, match="not a regular file: fix=remove it") as caught:
        open_source(tmp_path)
    assert caught.value.code == "E-CACHE"
    assert caught.value.path == os.fsencode(tmp_path) + b"/" + MANIFEST


def test_transient_storage_errors_are_retried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, pread, calls = open_cache(path), os.pread, []

    def flaky(fd: int, size: int, at: int) -> bytes:
        calls.append(at)
        if len(calls) in (1, 2):
            raise OSError(116, "Stale file handle")
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", flaky)
    assert np.array_equal(cache.read(2), PIXELS[2])
    assert len(calls) > 2


def test_many_threads_open_the_file_once(path: Path) -> None:
    cache = pickle.loads(pickle.dumps(open_cache(path).files[0]))
    gc.collect()  # close the files of earlier tests now
    before = len(os.listdir("/proc/self/fd"))
    gate = threading.Barrier(8)

    def read() -> None:
        gate.wait()
        cache.read(0, 10)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(os.listdir("/proc/self/fd")) == before + 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_million_images_take_little_memory(tmp_path: Path) -> None:
    count, path = 1_000_000, tmp_path / "million.h5"
    datasets = tables([pixel_item(PIXELS[0])])
    datasets["samples"] = np.repeat(datasets["samples"], count)
    names = b"".join(b"n01440764/n01440764_%08d.JPEG" % number for number in range(count))
    datasets["names"] = np.frombuffer(names, np.uint8)
    datasets["name_ends"] = (np.arange(count, dtype="<i8") + 1) * (len(names) // count)
    _write(path, datasets)

    def kib(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]

    def look(wait: object) -> list[Any]:
        before = kib("VmRSS")
        source = open_source(path)
        return [len(source), os.fsdecode(source.path(999_999))[-34:], kib("VmHWM") - before]

    num_images, name, grown = ForkedChild(look).result()
    assert (num_images, name) == (count, ":n01440764/n01440764_00999999.JPEG")
    assert grown < 100 << 10


CRAFTED: dict[str, Any] = {
    "samples": [6.0, "6", True, 0, -6, None, [6]],
    "payload_bytes": ["9", -1, None, 1.5, 1 << 63],
    "source_bytes": ["x", None, -1, 10**400],
    "classes": [5, [1], None, ["a", "\ud83d"], "ab", {"a": 1}],
    "digests": [[], None, {"samples": 1}, "samples"],
    "shard": [[], "ab", [0, 1, 0], [0, 1, 0, "6"], [0, 1, 0, -1], [0, 1, 0, True], None],
    "source": [None, [], {"root": 1}, {"root": "\ud83d"}],
    "counts": [None, [], {"strips": "1"}, {"strips": 1.0}, {"strips": 10**400}],
    "kept": [None, [["why", 1]], {"why": None}, {"\x1b[2J": 1}, {"\udcff": 1}],
    "versions": [None, [], {"torch": 2}],
    "psnr_db": ["x", [], True, 10**400],
    "encoding": [None, [], "jpeg", {"kind": ["raw"]}, {"kind": "raw", "resize": 160.5}, {"kind": "raw", "resize": "9"}],
    "fingerprint": [None, 7, ["ab"], "\ud83d"],
    "schema": [True, 1.0, "1", None, [SCHEMA]],
}


NO_OBJECTS = (b"[" * 100_000, b'{"schema": ' + b"[" * 700 + b"]" * 700 + b"}", b"\xff", b"[]", b"1")


@pytest.mark.parametrize("field", [*CRAFTED, ""])
def test_an_about_text_with_a_wrong_type_is_refused(tmp_path: Path, field: str) -> None:
    """One field or the whole text has the wrong type; the digest is correct."""
    datasets = tables([pixel_item(p) for p in PIXELS])
    texts = [about_of(datasets, **{field: value}) for value in CRAFTED.get(field, [])]
    if not field:
        digested = [text + hashlib.blake2b(text, digest_size=32).digest() for text in NO_OBJECTS]
        texts = [np.frombuffer(text, np.uint8) for text in digested]
    for number, about in enumerate(texts):
        path = _write(tmp_path / f"{number}.h5", datasets, about)
        with pytest.raises(LoaderError, match=rf"E-CACHE.*({field or 'JSON|schema'}|settings)"):
            open_cache(path)


def test_records_whose_sizes_exceed_an_int64_are_refused(tmp_path: Path) -> None:
    """3 * width * height and offset + length are plausible only modulo 2**64."""
    width, height, rows = 4294853786, 1431693603, 65535
    num_strips = -(-height // rows)
    pixels = (3 * width * height) % 2**64
    length = 4 * num_strips + pixels
    assert 0 < length < 1 << 20
    datasets = tables([pixel_item(p) for p in PIXELS])
    datasets["payload"] = np.zeros(max(length, len(datasets["payload"])), np.uint8)
    huge = {"offset": 0, "length": length, "head": 4 * num_strips, "width": width, "height": height, "strip_rows": rows}
    for number, fields in enumerate((huge, {"offset": (1 << 63) - 1})):
        strange = {**datasets, "samples": datasets["samples"].copy()}
        for name, value in fields.items():
            strange["samples"][name][1] = value
        with pytest.raises(LoaderError, match=r"E-CACHE.*record 1 .*invalid"):
            open_cache(_write(tmp_path / f"strange{number}.h5", strange))
