"""LocalCopy: its limit and contents, full disks, concurrent users, and kills at random moments."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from constrained import mounted
from forked_child import ForkedChild
from mounts import needs_mounts
from photo_folder import write_folder
from range_server import RangeServer
from remote_photos import open_loader, open_remote
from served_rows import Row, serve

from penstock.loaders import Blocks, LoaderError, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote import fetcher, local_copy
from penstock.loaders.data.remote.local_copy import LocalCopy
from penstock.loaders.data.remote.remote_source import RemoteSource
from penstock.loaders.data.samples.samples import Samples
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import Container, Version
from penstock.loaders.order.order import Shuffled

SLACK = 64 << 10
NUM_PHOTOS = 96


# ---- the copy alone, with numbered samples ----


def index_of(num_samples: int, least: int, most: int) -> Samples:
    """Return an index of one container. Its samples are separated only by the gap of a tar header."""
    sizes = np.random.default_rng(num_samples).integers(least, most, num_samples)
    ends = np.cumsum(sizes + 512)
    writer = SamplesWriter()
    writer.add_container(Container(b"http://host/a.bin", int(ends[-1]), Version(1)))
    writer.add_samples(np.zeros(num_samples), ends - sizes, sizes, [b"%d" % number for number in range(num_samples)])
    writer.classes, writer.labels = [b"one"], np.zeros(num_samples, np.int32)
    return writer.save()


def content(index: Samples, sample: int) -> bytes:
    return np.random.default_rng(sample).bytes(int(index.sizes[sample]))


def open_copy(tmp_path: Path, index: Samples, limit: int) -> LocalCopy:
    return LocalCopy(os.fsencode(tmp_path / "copy"), index, limit)


def run_epochs(copy: LocalCopy, index: Samples, epochs: int) -> float:
    """Serve shuffled epochs; check bytes and limit; return the share served by the copy after the first epoch."""
    order, n, hits = Shuffled(len(index), 3), len(index), 0
    for epoch in range(epochs):
        for sample in order(epoch, np.arange(n)).tolist():
            found = copy.read(sample)
            if found is None:
                copy.keep(sample, memoryview(content(index, sample)))
                assert copy.num_bytes <= copy._limit + SLACK
            else:
                assert found == content(index, sample)
                hits += epoch > 0
    return hits / max(1, n * (epochs - 1))


def test_the_native_library_writes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, written = index_of(60, 1, 9000), []
    for folder in ("native", "python"):
        copy = open_copy(tmp_path / folder, index, 1 << 30)
        for sample in range(0, 60, 2):
            assert copy.keep(sample, memoryview(content(index, sample)))
        written.append([(tmp_path / folder / "copy" / name).read_bytes() for name in ("samples", "table")])
        monkeypatch.setattr(local_copy, "native_library", lambda: None)
    assert written[0] == written[1]


@pytest.mark.parametrize(("num_samples", "least", "most"), [(300, 10_000, 60_000), (1000, 500, 6000)])
def test_the_samples_stored_first_stay(tmp_path: Path, num_samples: int, least: int, most: int) -> None:
    """The limit is used but kept, also for samples smaller than a disk block; hits equal the share that fits."""
    index = index_of(num_samples, least, most)
    limit = int(index.sizes.sum()) // 2
    copy = open_copy(tmp_path, index, limit)
    assert run_epochs(copy, index, 1) == 0
    stored = copy.has(np.arange(num_samples))
    assert int(index.sizes[stored].sum()) > limit * 0.5
    assert run_epochs(copy, index, 4) == stored.mean()


def test_reserved_room_serves_each_sample_once(tmp_path: Path) -> None:
    """A full copy drops enough samples; samples stored early are dropped when read, and the rest stays."""
    index = index_of(300, 10_000, 60_000)
    limit = int(index.sizes.sum()) // 2
    copy, everything = open_copy(tmp_path, index, limit), np.arange(300)
    run_epochs(copy, index, 1)
    first = copy.has(everything)
    assert not copy.reserve(limit // 2 + 1)
    assert copy.reserve(limit // 4)
    assert limit * 0.7 < copy.num_bytes <= limit * 3 // 4
    rest = copy.has(everything)
    assert not (rest & ~first).any()
    absent = np.flatnonzero(~rest).tolist()
    assert not any(copy.keep(sample, memoryview(content(index, sample))) for sample in absent[-3:])
    for sample in absent:
        assert copy.keep(sample, memoryview(content(index, sample)), is_early=True)
        assert copy.num_bytes <= limit + SLACK
        assert copy.read(sample) == content(index, sample)
    assert (copy.has(everything) & ~rest).sum() <= 3  # stored while stored was room besides the reserve
    copy.reserve(0)
    assert run_epochs(copy, index, 2) > 0.4


def test_a_dropped_sample_frees_all_its_blocks(tmp_path: Path) -> None:
    size = 3 * 4096 + 1 - 512  # it begins at 512 and ends with the first byte of a block
    index = index_of(1, size, size + 1)
    copy = open_copy(tmp_path, index, 1 << 20)
    copy.keep(0, memoryview(content(index, 0)))
    assert copy.num_bytes >= size
    copy._drop(0)
    assert copy.num_bytes == 0


def test_without_punched_holes_the_copy_keeps_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(100, 10_000, 30_000)
    monkeypatch.setattr(local_copy, "_punch_hole", lambda *_: -1)
    copy = open_copy(tmp_path, index, int(index.sizes.sum()) // 2)
    run_epochs(copy, index, 1)
    assert not copy.reserve(100_000)
    assert run_epochs(copy, index, 3) > 0.4


def test_a_table_of_another_size_is_replaced(tmp_path: Path) -> None:
    index = index_of(100, 1000, 3000)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "table").write_bytes(b"x")  # a kill between two steps may leave this
    (tmp_path / "copy" / "samples").write_bytes(b"y" * 100)
    copy = open_copy(tmp_path, index, 1 << 30)
    run_epochs(copy, index, 1)
    assert open_copy(tmp_path, index, 1 << 30).has(np.arange(100)).all()


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(b"a file")
    with pytest.raises(LoaderError, match="cannot store a local copy") as caught:
        open_copy(tmp_path, index_of(3, 10, 20), 1 << 20)
    assert caught.value.code == "E-NOSPC"


def run_threads(function: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_can_store_samples_concurrently(tmp_path: Path) -> None:
    """All threads store all samples while samples are dropped; stored samples are complete and within the limit."""
    index = index_of(300, 5_000, 30_000)
    copy = open_copy(tmp_path, index, int(index.sizes.sum()) // 3)
    contents = [content(index, sample) for sample in range(300)]
    most = [0] * 8

    def keep(number: int) -> None:
        for sample in np.random.default_rng(number).permutation(300).tolist():
            copy.keep(sample, memoryview(contents[sample]))
            most[number] = max(most[number], copy.num_bytes)

    run_threads(keep, len(most))
    stored = np.flatnonzero(copy.has(np.arange(300))).tolist()
    assert len(stored) > 60
    assert all(copy.read(sample) == contents[sample] for sample in stored)
    assert max(most) <= copy._limit + SLACK


_FILL = """
import pickle, sys, warnings
from penstock.loaders.data.remote.local_copy import LocalCopy
index = pickle.load(sys.stdin.buffer)
for folder in sys.argv[1:]:
    copy = LocalCopy(folder.encode(), index, 1 << 30)
    for sample in range(len(index)):
        copy.keep(sample, memoryview(bytes([sample]) * int(index.sizes[sample])))
    print(sum(copy.read(sample) is not None for sample in range(len(index))))
"""


@needs_mounts
def test_a_full_disk_causes_one_warning(tmp_path: Path) -> None:
    """Each folder has its own disk; on one of them not even the table fits."""
    small, large = folders = [tmp_path / "small", tmp_path / "large"]
    for folder in folders:
        folder.mkdir()
    mount = "mount -t tmpfs -o size={}k tmpfs {}".format
    command = [*mounted(f"{mount(4, small)} && {mount(400, large)}"), sys.executable, "-c", _FILL, *folders]
    index = index_of(200, 5_000, 30_000)
    done = subprocess.run(command, input=pickle.dumps(index), capture_output=True, check=True, timeout=600)
    assert done.stderr.count(b"UserWarning") == done.stderr.count(b"cannot store more samples: No space left") == 2
    assert [int(kept) > 5 for kept in done.stdout.split()] == [False, True]


# ---- behind a loader ----


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """Photos of noise, each larger than several disk blocks."""
    root = write_folder(tmp_path_factory.mktemp("photos"), NUM_PHOTOS)
    for number, path in enumerate(sorted(root.rglob("*.jpg"))):
        side = 64 + number % 48
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
        path.write_bytes(simplejpeg.encode_jpeg(pixels, 95, "RGB", "444"))
    source = open_source(root)
    assert isinstance(source, ImageFolder)
    return source


@pytest.mark.parametrize("shuffle", [True, Blocks(samples=4, group=6)], ids=["random", "blocks"])
def test_samples_that_fit_are_served_from_the_copy(
    server: RangeServer, photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: Any
) -> None:
    """Measured as the share of bytes from the copy; blocks pass through a part of it."""
    monkeypatch.setattr(fetcher, "MAX_GAP_BYTES", 0)  # nothing comes that was not asked for
    limit = int(photos.num_bytes * (0.5 if shuffle is True else 0.75))
    source = open_remote(server, photos, local_cache=tmp_path / "copy", local_bytes=limit, bytes_ahead=1)
    with open_loader(source, workers=1, workers_are="threads", batch_size=4, shuffle=shuffle) as loader:
        serve(loader)
        before = source.store.num_bytes
        for _ in range(3):
            serve(loader)
    assert source.local is not None
    assert source.local.num_bytes <= limit + SLACK
    share = 1 - (source.store.num_bytes - before) / (3 * photos.num_bytes)
    assert share > (0.35 if shuffle is True else 0.25)  # with blocks, 3/8 are reserved


def test_a_full_disk_does_not_end_the_stream(
    server: RangeServer, photos: ImageFolder, expected: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, num_writes = os.pwrite, 0

    def fill_up(fd: int, data: memoryview, offset: int) -> int:
        nonlocal num_writes
        num_writes += 1
        if num_writes > 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:4096], offset)  # a short write, as on a real disk

    monkeypatch.setattr(os, "pwrite", fill_up)
    monkeypatch.setattr(local_copy, "native_library", lambda: None)
    source = open_remote(server, photos, local_cache=tmp_path / "copy")
    with (
        pytest.warns(UserWarning, match="cannot store more samples: No space left on device") as warned,
        open_loader(source, workers=3, workers_are="threads") as loader,
    ):
        assert serve(loader) + serve(loader) == expected
    assert len(warned) == 1


def test_a_warning_that_is_an_error_does_not_hang(
    server: RangeServer, photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(local_copy, "native_library", lambda: None)
    source = open_remote(server, photos, local_cache=tmp_path / "copy")
    with (
        open_loader(source, workers=0) as loader,
        pytest.raises(LoaderError, match=r"UserWarning: .* cannot store more samples"),
    ):
        serve(loader)


def test_loaders_and_processes_share_a_copy(
    server: RangeServer, photos: ImageFolder, expected: list[Row], tmp_path: Path
) -> None:
    """Two loaders alternate while samples are dropped; one has two worker processes."""
    options = {"local_cache": tmp_path / "copy", "local_bytes": photos.num_bytes // 2}
    with (
        open_loader(open_remote(server, photos, **options), workers=2, workers_are="processes") as first,
        open_loader(open_remote(server, photos, **options), workers=2, workers_are="threads") as second,
    ):
        served: tuple[list[Row], list[Row]] = ([], [])
        for _ in range(2):
            run_threads(lambda number: served[number].extend(serve((first, second)[number])), 2)
    assert served[0] == served[1] == expected


def test_an_index_of_other_content_has_a_separate_folder(
    server: RangeServer, photos: ImageFolder, expected: list[Row], tmp_path: Path
) -> None:
    for number, etag in enumerate(("one", "two"), 1):
        server.etags["/2.bin"] = etag
        before = server.num_bytes
        source = open_remote(server, photos, local_cache=tmp_path / "copy")
        with open_loader(source) as loader:
            assert serve(loader) + serve(loader) == expected
        assert server.num_bytes - before > photos.num_bytes / 2  # nothing came from the other copy
        assert len(list((tmp_path / "copy").iterdir())) == number


def test_a_deleted_source_has_no_open_files(server: RangeServer, photos: ImageFolder, tmp_path: Path) -> None:
    def count_files() -> int:
        gc.collect()
        open_files = (os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum(str(tmp_path / "copy") in name for name in open_files)

    source = open_remote(server, photos, local_cache=tmp_path / "copy")
    with open_loader(source, workers=0) as loader:
        serve(loader, 2)
    assert count_files() == 2  # the samples and the table
    del source, loader
    assert count_files() == 0


def kill_writers(count: int, source: RemoteSource, photos: ImageFolder, check: Callable[[], None]) -> list[int]:
    """Kill processes that write the copy of `source`; after each kill, all stored samples must be complete.

    Returns the number of stored samples after each kill.
    """
    contents = [memoryview(photos.read(index)) for index in range(len(photos))]
    assert source.local is not None
    folder, limit, index = source.local.folder, photos.num_bytes // 2, source.samples
    stored = []

    def write(wait: Callable[[], None]) -> None:
        copy = LocalCopy(folder, index, limit)
        wait()

        def keep(number: int) -> None:
            generator = np.random.default_rng([number, os.getpid()])
            while True:
                sample = int(generator.integers(len(contents)))
                copy.keep(sample, contents[sample])

        run_threads(keep, 3)

    for _ in range(count):
        child = ForkedChild(write, group=True)
        child.waits()
        child.go_on()
        time.sleep(random.uniform(0, 0.06))
        child.kill_group()
        copy = LocalCopy(folder, index, limit)
        present = np.flatnonzero(copy.has(np.arange(len(contents)))).tolist()
        assert all(copy.read(sample) == contents[sample] for sample in present)
        stored.append(len(present))
        check()
    return stored


def test_kills_at_random_moments_leave_a_sound_copy(
    server: RangeServer, photos: ImageFolder, expected: list[Row], tmp_path: Path
) -> None:
    options = {"local_cache": tmp_path / "copy", "local_bytes": photos.num_bytes // 2}

    def check() -> None:
        with open_loader(open_remote(server, photos, **options), workers=0) as loader:
            assert serve(loader) == expected[: len(expected) // 2]

    stored = kill_writers(
        int(os.environ.get("PENSTOCK_KILLS", "4")), open_remote(server, photos, **options), photos, check
    )
    assert max(stored) > NUM_PHOTOS // 4
