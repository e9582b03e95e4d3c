"""Building a cache file: what it contains, when it is built, and that readers only ever see a complete file."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from folder_trees import settle
from memory_source import MemorySource
from photo_folder import photo, write_folder
from PIL import Image
from stored_images import has_images_of

import penstock.loaders.cache_build.build_file as cache_build
from penstock.loaders.cache_build import disk_space as build_space
from penstock.loaders.cache_build import encode as cache_encode
from penstock.loaders.cache_build import freshness as cache_key
from penstock.loaders.cache_build import unfinished as build_folder
from penstock.loaders.cache_build.build import BuiltCache, build_cache
from penstock.loaders.cache_build.build_progress import BuildProgress
from penstock.loaders.cache_build.chunks import Chunk, Task
from penstock.loaders.cache_build.encode import SampleEncoder
from penstock.loaders.cache_build.hdf5_frame import PAYLOAD_OFFSET
from penstock.loaders.cache_build.lock import BuildLock
from penstock.loaders.cache_build.unfinished import BuildFolder
from penstock.loaders.cache_build.verify import refuse_other_source, verify_cache
from penstock.loaders.data.cache.format import FILE, RECORD, STRIPS, Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native import library as native_library

NUM_PHOTOS = 8
RAW = Encoding(kind="raw", resize=24)


@pytest.fixture(scope="module")
def reference(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of the cache of `photos`."""
    path = tmp_path_factory.mktemp("reference") / "x.h5"
    build(photos, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder of four photos and the bytes of its cache, for faults at each call of a build."""
    folder = tmp_path_factory.mktemp("few")
    photos = settle(write_folder(folder / "photos", 4))
    build(photos, folder / "x.h5")
    return photos, (folder / "x.h5").read_bytes()


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two images, each synced to disk."""
    monkeypatch.setattr("penstock.loaders.cache_build.chunks.MAX_CHUNK_SAMPLES", 2)
    monkeypatch.setattr("penstock.loaders.cache_build.chunks.FIRST_CHUNK_SAMPLES", 2)
    for module in (build_folder, cache_build):
        monkeypatch.setattr(module, "SYNC_BYTES", 1)


def build(source: Any, dest: Path, encoding: Encoding | None = None, **options: Any) -> BuiltCache:
    opened = ImageFolder(source) if isinstance(source, Path) else source
    return build_cache(opened, dest, encoding, **{"workers": 0, **options})


def refused(code: str, *arguments: Any, **options: Any) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        build(*arguments, **options)
    assert caught.value.code == code
    return caught.value


def outcome(*arguments: Any, **options: Any) -> LoaderError | None:
    """Return the error of a build, or None."""
    try:
        build(*arguments, **options)
    except LoaderError as error:
        return error
    return None


class Stop(BaseException):
    """Ends a build in the middle, as Ctrl-C does."""


def on_encode(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], object]) -> list[int]:
    """Call `action` with the sample's number before each sample is encoded; return the numbers so far."""
    encode, calls = SampleEncoder.encode, []

    def watched(self: SampleEncoder, data: Any, label: int) -> Any:
        calls.append(len(calls))
        action(calls[-1])
        return encode(self, data, label)

    monkeypatch.setattr(SampleEncoder, "encode", watched)
    return calls


def stop_at(monkeypatch: pytest.MonkeyPatch, sample: int) -> None:
    def stop(call: int) -> None:
        if call == sample:
            raise Stop

    on_encode(monkeypatch, stop)


# Contents


def test_a_cache_contains_its_source(photos: Path, tmp_path: Path) -> None:
    source, path = ImageFolder(photos), tmp_path / "x.h5"
    Image.new("RGB", (9, 7), (10, 200, 30)).save(tmp_path / "odd.png")
    built = build(source, path)
    cache = open_cache(path)
    assert built.complete
    assert [file.built for file in built.files] == [NUM_PHOTOS]
    assert len(cache) == NUM_PHOTOS
    assert cache.classes == source.classes
    assert cache.fingerprint == source.fingerprint
    assert cache.labels(np.arange(NUM_PHOTOS)).tolist() == source.labels(np.arange(NUM_PHOTOS)).tolist()
    assert [cache.name(i) for i in range(NUM_PHOTOS)] == [
        os.path.relpath(source.path(i), source.root) for i in range(NUM_PHOTOS)
    ]
    assert verify_cache(cache).sound
    refuse_other_source(cache, source)
    assert has_images_of(cache, source)
    about = cache.about[0]
    assert about.counts == {"strips": NUM_PHOTOS, "file": 0, "pixels": 0, "bad": 0}
    assert about.source_bytes == source.num_bytes
    assert about.psnr_db is None
    assert {"penstock", "torch", "simplejpeg", "h5py", "hdf5"} <= set(about.versions)
    assert sorted(os.listdir(path.parent)) == ["odd.png", "x.h5"]


def test_other_formats_and_broken_files_are_stored_unchanged(tmp_path: Path) -> None:
    root = tmp_path / "images"
    root.mkdir()
    for name, content in {"a.jpg": photo(1), "b.jpg": photo(2)[:300], "c.jpg": b"", "e.jpg": photo(3)}.items():
        (root / name).write_bytes(content)
    Image.new("RGB", (9, 7)).save(root / "d.png")
    about = build(root, tmp_path / "x.h5").files[0].about
    cache = open_cache(tmp_path / "x.h5")
    assert cache.records["kind"].tolist() == [STRIPS, FILE, FILE, FILE, STRIPS]
    assert about.counts == {"strips": 2, "file": 3, "pixels": 0, "bad": 2}
    assert [cache.read(i) for i in (1, 2)] == [photo(2)[:300], b""]


@pytest.mark.parametrize("encoding", [Encoding(), RAW, Encoding(resize=30, quality=70)])
def test_the_bytes_do_not_depend_on_the_workers(photos: Path, tmp_path: Path, encoding: Encoding) -> None:
    build(photos, tmp_path / "a.h5", encoding)
    build(photos, tmp_path / "b.h5", encoding, workers=3)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def test_a_lossy_cache_reports_its_psnr(photos: Path, tmp_path: Path) -> None:
    worse = build(photos, tmp_path / "a.h5", Encoding(quality=30)).files[0].about.psnr_db
    better = build(photos, tmp_path / "b.h5", Encoding(quality=95)).files[0].about.psnr_db
    assert worse is not None
    assert better is not None
    assert 20 < worse < better < 99
    assert open_cache(tmp_path / "a.h5").about[0].psnr_db == worse


def test_a_build_without_the_native_library_stores_files_unchanged(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    class Notes(BuildProgress):
        def note(self, text: str) -> None:
            notes.append(text)

    with monkeypatch.context() as patch:
        for module in (cache_build, cache_key, cache_encode):
            patch.setattr(module, "native_library", lambda: None)
        cache_key.build_versions.cache_clear()
        about = build(photos, tmp_path / "x.h5", progress=Notes()).files[0].about
        assert about.kept == {cache_encode.NO_LIBRARY: NUM_PHOTOS}
        assert build(photos, tmp_path / "x.h5", replace_stale=True, progress=Notes()).files[0].built == 0
    cache_key.build_versions.cache_clear()
    assert len(notes) == 1
    assert native_library.CURE in notes[0]
    # Loaders accept this cache; building again makes a better one.
    assert build(photos, tmp_path / "x.h5").files[0].built == 0
    assert build(photos, tmp_path / "x.h5", replace_stale=True).files[0].about.counts["strips"] == NUM_PHOTOS


@pytest.mark.parametrize(
    ("kept", "native", "improvable"),
    [
        (cache_encode.NO_LIBRARY, object(), True),
        (
            "jpegtran is missing",
            object(),
            True,
        ),  # from an earlier version, which left progressive files to that program
        (cache_encode.NO_LIBRARY, None, False),
        ("unsupported by the native library", object(), False),
    ],
)
def test_a_cache_is_improvable_if_its_reasons_no_longer_apply(
    kept: str, native: object, improvable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_key, "native_library", lambda: native)
    assert cache_key.is_improvable(SimpleNamespace(kept={kept: 3})) == improvable  # type: ignore[arg-type]


def test_an_unfinished_build_continues_with_or_without_the_native_library(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for native in (None, object()):
        monkeypatch.setattr(cache_key, "native_library", lambda native=native: native)
        cache_key.build_versions.cache_clear()
        keys.add(cache_key.build_key(ImageFolder(photos), Encoding(), (0, 1)))
    cache_key.build_versions.cache_clear()
    assert len(keys) == 1


def test_missing_h5py_is_reported(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_key.build_versions.cache_clear()
    monkeypatch.setitem(sys.modules, "h5py", None)
    error = refused("E-DEPENDENCY", photos, tmp_path / "x.h5")
    assert "h5py" in error.fix
    assert os.listdir(tmp_path) == []


def test_a_cache_among_its_images_is_refused(photos: Path) -> None:
    refused("E-MISUSE", photos, photos / "class0" / "x.h5")
    assert not (photos / "class0" / "x.h5").exists()


# When it is built


def test_a_fresh_cache_is_left_alone(photos: Path, tmp_path: Path) -> None:
    build(photos, tmp_path / "x.h5")
    before = os.stat(tmp_path / "x.h5")
    for replace in (False, True):
        built = build(photos, tmp_path / "x.h5", replace_stale=replace)
        assert [file.built for file in built.files] == [0]
    after = os.stat(tmp_path / "x.h5")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("content", [b"", b"something of the user's", b"\x89HDF\r\n\x1a\n" + bytes(9000), None])
def test_other_files_are_never_overwritten(photos: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(content or b"")
    if content is None:
        with h5py.File(path, "w") as file:
            file["weights"] = np.zeros(9000)
        content = path.read_bytes()
    for replace in (False, True):
        refused("E-CACHE", photos, path, replace_stale=replace)
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["x.h5"]


@pytest.mark.parametrize("cut", [5000, -1, -600])
def test_a_damaged_cache_is_rebuilt_with_replace_stale(
    photos: Path, tmp_path: Path, reference: bytes, cut: int
) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(reference[:cut])
    refused("E-CACHE", photos, path)
    assert path.read_bytes() == reference[:cut]
    assert build(photos, path, replace_stale=True).files[0].built == NUM_PHOTOS
    assert path.read_bytes() == reference


# Interruptions


@pytest.mark.parametrize("encoding", [Encoding(), Encoding(quality=50)], ids=["the same", "another"])
def test_a_set_of_shards_cannot_be_opened_before_its_last_file(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    """Stopped before each shard gets its name, and before the manifest does; an existing set is replaced."""
    build(photos, tmp_path / "whole", shards=3)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    build(photos, tmp_path / "before", encoding, shards=3)
    if encoding == Encoding():
        for path in (tmp_path / "before").iterdir():
            path.unlink()  # an empty folder: a set is built for the first time
    replace = os.replace
    for number in range(4):
        folder, calls = shutil.copytree(tmp_path / "before", tmp_path / str(number)), itertools.count()

        def stop(*paths: Any, calls: Iterator[int] = calls, number: int = number) -> None:
            if next(calls) == number:
                raise Stop
            replace(*paths)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", stop)
            with pytest.raises(Stop):
                build(photos, folder, shards=3, replace_stale=True)
        with pytest.raises(LoaderError, match=r"E-CACHE.*(not complete|does not contain a cache)"):
            open_cache(folder)
        assert sum(file.resumed > 0 for file in build(photos, folder, shards=3, replace_stale=True).files) <= 1
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


@pytest.mark.usefixtures("small_steps")
def test_builders_with_one_process_number_share_nothing(
    photos: Path, tmp_path: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers may both be process 1; one of them is taken for dead while it is only paused."""
    inner: list[bool] = []

    def meanwhile(call: int) -> None:
        if len(os.listdir(tmp_path)) == 2 and not inner:
            inner.append(True)
            os.rename(tmp_path / "x.h5.lock", tmp_path / "lost.lock")
            assert build(photos, tmp_path / "x.h5").files[0].built

    monkeypatch.setattr(os, "getpid", lambda: 1)
    on_encode(monkeypatch, meanwhile)
    monkeypatch.setattr(BuildLock, "check", lambda lock: None)  # it wakes up between the check and the next step
    assert "No such file" in refused("E-CACHE", photos, tmp_path / "x.h5").cause
    assert inner
    assert (tmp_path / "x.h5").read_bytes() == reference


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("damage", ["flip", "cut", "zero", "journal", "empty journal", "no journal"])
def test_a_damaged_unfinished_build_ends_in_the_same_cache(
    photos: Path, tmp_path: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 7)
        with pytest.raises(Stop):
            build(photos, tmp_path / "x.h5")
    (folder,) = tmp_path.iterdir()
    data, journal = folder / "data", folder / "journal"
    content, notes = bytearray(data.read_bytes()), bytearray(journal.read_bytes())
    middle = (len(content) + PAYLOAD_OFFSET) // 2
    if damage == "flip":
        content[middle] ^= 4
    elif damage == "cut":
        del content[middle:]
    elif damage == "zero":  # what a power cut leaves of a file that was not synced
        content[middle:] = bytes(len(content) - middle)
    elif damage == "journal":
        notes[len(notes) // 2] ^= 1
    elif damage == "empty journal":
        notes.clear()
    data.write_bytes(content)
    journal.write_bytes(notes)
    if damage == "no journal":
        journal.unlink()
    file = build(photos, tmp_path / "x.h5").files[0]
    assert 0 < file.resumed < 6 if "no" not in damage and "empty" not in damage else file.resumed == 0
    assert (tmp_path / "x.h5").read_bytes() == reference


@pytest.mark.usefixtures("small_steps")
def test_an_unfinished_build_of_something_else_is_removed(
    photos: Path, tmp_path: Path, reference: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(Stop):
            build(photos, tmp_path / "x.h5", Encoding(quality=50))
    (folder,) = tmp_path.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())] == [0o700, 0o600, 0o600]
    folder.rename(tmp_path / "x.h5.tmp.1")
    (tmp_path / "x.h5.tmp.old").mkdir()  # not a folder of penstock
    assert build(photos, tmp_path / "x.h5").files[0].resumed == 0
    assert (tmp_path / "x.h5").read_bytes() == reference
    assert sorted(os.listdir(tmp_path)) == ["x.h5", "x.h5.tmp.old"]


def chunk(number: int) -> Chunk:
    records = np.zeros(number + 1, RECORD)
    records["length"], records["label"] = 10, number
    payload = bytes([number]) * 10 * (number + 1)
    return Chunk(Task(0, number + 1), records, payload, 77, {"CMYK": number}, {"E-TRUNC": 1})


def test_stored_chunks_are_read_back_and_continued(tmp_path: Path) -> None:
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


def test_a_live_builder_is_left_alone(photos: Path, tmp_path: Path, reference: bytes) -> None:
    theirs = tmp_path / "x.h5.tmp.1"
    with BuildLock(os.fsencode(tmp_path / "x.h5.lock")) as lock:
        lock.acquire()
        theirs.mkdir()
        (theirs / "data").write_bytes(b"in the making")
        assert f"process {os.getpid()} on " in refused("E-CACHE", photos, tmp_path / "x.h5", wait=False).cause

        class Finish(BuildProgress):
            def waiting(self, owner: str) -> None:
                assert f"process {os.getpid()} on " in owner
                (tmp_path / "x.h5").write_bytes(reference)
                lock.release()

        assert (theirs / "data").read_bytes() == b"in the making"
        assert build(photos, tmp_path / "x.h5", progress=Finish()).files[0].built == 0
    assert (tmp_path / "x.h5").read_bytes() == reference
    assert os.listdir(tmp_path) == ["x.h5"]


@pytest.mark.parametrize("offset", [PAYLOAD_OFFSET, PAYLOAD_OFFSET + 9999, -300])
def test_storage_that_loses_written_data_is_noticed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    fsync = os.fsync

    def losing(fd: int) -> None:
        fsync(fd)
        if os.pread(fd, 4, 0) == b"\x89HDF":  # everything is written
            at = offset % os.fstat(fd).st_size
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", losing)
        refused("E-CACHE", photos, tmp_path / "x.h5")
    assert not (tmp_path / "x.h5").exists()
    build(photos, tmp_path / "x.h5")
    assert verify_cache(open_cache(tmp_path / "x.h5")).sound


@pytest.mark.usefixtures("small_steps")
def test_a_builder_that_lost_its_lock_stops(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = on_encode(monkeypatch, lambda _: (tmp_path / "x.h5.lock").unlink(missing_ok=True))
    assert "lock" in refused("E-CACHE", photos, tmp_path / "x.h5").cause
    assert len(calls) == 2  # it stops writing at the first chunk
    assert not (tmp_path / "x.h5").exists()


def test_a_source_that_changes_during_a_build_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "images"
    shutil.copytree(photos, root)
    source = ImageFolder(root)
    monkeypatch.setattr(source, "refreshed", lambda: source)  # unchanged until the build begins
    (root / "class1" / "0004.jpg").write_bytes(photo(9))
    error = refused("E-CHANGED", source, tmp_path / "x.h5")
    assert error.path is not None
    assert error.path.endswith(b"0004.jpg")
    (root / "class1" / "0004.jpg").unlink()
    refused("E-MISSING", source, tmp_path / "x.h5", workers=1)
    assert not (tmp_path / "x.h5").exists()
    assert not (tmp_path / "x.h5.lock").exists()
    build(ImageFolder(root, rescan=True), tmp_path / "x.h5")
    assert sorted(os.listdir(tmp_path)) == ["images", "x.h5"]


def test_a_label_without_a_class_is_reported(tmp_path: Path) -> None:
    source = MemorySource([photo(number) for number in range(4)])
    source.classes = (b"0", b"1", b"2")  # type: ignore[assignment]  # the label of each image is its number
    with pytest.raises(LoaderError, match=r"E-DATASET\] sample=3 cause=its label is 3, but the source has 3 classes"):
        build_cache(source, tmp_path / "set", shards=2, workers=0)


# A full disk


def free_bytes(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    class Status:
        f_bavail, f_frsize = count, 1

    monkeypatch.setattr(build_space.os, "statvfs", lambda path: Status)


def test_too_little_disk_space_is_reported_before_the_build(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 0)
    free_bytes(monkeypatch, ImageFolder(photos).num_bytes)
    assert "need=" in refused("E-NOSPC", photos, tmp_path / "x.h5").cause
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("small_steps")
def test_too_little_disk_space_is_reported_during_the_build(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes(monkeypatch, NUM_PHOTOS * 2000)
    calls = on_encode(monkeypatch, lambda _: None)
    refused("E-NOSPC", photos, tmp_path / "x.h5", Encoding(kind="raw"))
    assert 0 < len(calls) < NUM_PHOTOS
    assert os.listdir(tmp_path) == []


FULL_CALLS = ["pwrite", "fsync", "fdatasync", "truncate", "mkdir", "replace"]


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("call", "number"),
    [
        *((call, errno.ENOSPC) for call in FULL_CALLS),
        ("pwrite", errno.EDQUOT),
        *((call, errno.EIO) for call in ("pwrite", "fsync", "replace")),
    ],
)
def test_a_full_or_broken_disk_is_reported_at_any_call(
    few: tuple[Path, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    photos, reference = few
    expected = ("E-CACHE", 4) if number == errno.EIO else ("E-NOSPC", 7)
    real, at, descriptors = getattr(os, call), 0, len(os.listdir("/proc/self/fd"))
    while True:
        calls = iter(range(10**6))
        dest = tmp_path / f"{at}" / "x.h5"
        dest.parent.mkdir()
        full = False

        def failing(*arguments: Any, calls: Iterator[int] = calls, at: int = at, **options: Any) -> Any:
            nonlocal full
            if next(calls) == at:
                full = True
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing)
            error = outcome(photos, dest)
        assert error is None or (error.code, error.exit_code) == expected
        assert not dest.exists() or dest.read_bytes() == reference
        if not full:
            break
        assert number == errno.EIO or os.listdir(dest.parent) in ([], ["x.h5"])
        build(photos, dest)
        assert os.listdir(dest.parent) == ["x.h5"]
        assert dest.read_bytes() == reference
        at += 1
    assert at
    del error
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_read_only_folder_is_reported(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    source = ImageFolder(photos)
    with monkeypatch.context() as patch:
        patch.setattr(source, "refreshed", lambda: source)
        patch.setattr(os, "open", denied)
        patch.setattr(cache_build, "read_usable_file", lambda *_: None)
        refused("E-ACCESS", source, tmp_path / "x.h5")
    # An existing cache is used where nothing can be written.
    build(photos, tmp_path / "x.h5")
    monkeypatch.setattr(BuildLock, "acquire", denied)
    assert build(photos, tmp_path / "x.h5").files[0].built == 0
