"""URLs opened by fsspec: same stream as local files, replaced objects, missing packages, servers without an answer."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_photos import open_loader
from served_rows import Row, serve
from tar_files import write_tar

from penstock.loaders import LoaderError, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote import clients
from penstock.loaders.data.remote.access import Access
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.requests import request_retries

NUM_PHOTOS = 23


def write_tars(photos: ImageFolder, pattern: str, folder: Path) -> None:
    """Write the photos, in order, as two tars to a URL that contains *."""
    import fsspec

    for part, numbers in enumerate((range(12), range(12, NUM_PHOTOS))):
        files = [
            (f"{n:04}.{s}", photos.read(n) if s == "jpg" else b"%d" % photos.labels(n))
            for n in numbers
            for s in ("jpg", "cls")
        ]
        with fsspec.open(pattern.replace("*", f"000{part}"), "wb") as file:
            file.write(write_tar(folder / "x.tar", files).read_bytes())


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's in-memory file system, empty."""
    import fsspec

    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [("memory", {"workers": 2, "workers_are": "threads"}), ("local", {"workers": 2, "workers_are": "processes"})],
)
def test_the_stream_equals_that_of_local_files(
    memory: Any, photos: ImageFolder, expected: list[Row], tmp_path: Path, protocol: str, settings: dict[str, Any]
) -> None:
    url = "memory://bucket/train-*.tar" if protocol == "memory" else f"local://{tmp_path}/train-*.tar"
    write_tars(photos, url, tmp_path)
    write_tars(photos, url.replace("train", "val"), tmp_path)
    with open_loader(url, **settings) as loader:
        assert serve(loader) + serve(loader) == expected
    again = pickle.loads(pickle.dumps(open_source(url, local_cache=tmp_path / "copy")))
    assert [again.read(index) for index in range(NUM_PHOTOS)] == [photos.read(index) for index in range(NUM_PHOTOS)]


def test_missing_and_replaced_objects_are_reported_in_one_line(
    memory: Any, photos: ImageFolder, tmp_path: Path
) -> None:
    with pytest.raises(LoaderError, match="no such object") as caught:
        open_source("memory://bucket/train-0000.tar")
    assert caught.value.code == "E-MISSING"
    write_tars(photos, "memory://bucket/train-*.tar", tmp_path)
    source = open_source("memory://bucket/train-0000.tar", bytes_ahead=1)
    with open_loader(source, workers=0, batch_size=2) as loader:
        serve(loader, 2)
        write_tars(photos, "memory://bucket/train-*.tar", tmp_path)  # of the same size
        with pytest.raises(LoaderError, match="replaced since it was indexed") as caught:
            serve(loader)
    assert caught.value.code == "E-CHANGED"


def test_a_missing_package_is_reported_in_one_line_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    clients.open_client.cache_clear()
    for url, command in (("nowhere://a/b.tar", "pip install the package"), ("sftp://host/b.tar", "pip install the")):
        with pytest.raises(LoaderError, match="fsspec cannot open") as caught:
            open_source(url)
        assert caught.value.code == "E-DEPENDENCY"
        assert command in caught.value.fix
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LoaderError, match="needs the package fsspec") as caught:
        open_source("hdfs://host/b.tar")
    assert caught.value.fix == "pip install fsspec"


def test_a_protocol_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol is asynchronous, like fsspec's network protocols."""
    import asyncio

    import fsspec
    from fsspec.asyn import AsyncFileSystem

    class Silent(AsyncFileSystem):  # type: ignore[misc]
        protocol = "silent"

        async def _info(self, path: str, **options: Any) -> dict[str, Any]:
            await asyncio.sleep(3600)
            return {}

    fsspec.register_implementation("silent", Silent)
    for name in ("STALL_S", "LONG_STALL_S", "LAST_STALL_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(request_retries, name, 0.3)
    store = ObjectStore(Access(retry_s=1))
    with pytest.raises(LoaderError, match="FSTimeoutError") as caught:
        store.stat("silent://host/a.tar")
    assert caught.value.code == "E-READ"
    assert store.retries > 0


def test_a_buffered_protocol_reads_no_more_than_the_range() -> None:
    """Files of hf:// and others read 5 MiB ahead, of which a reader of ranges uses nothing."""
    import fsspec
    from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

    content, fetched = bytes(range(250)) * 40_000, list[tuple[int, int]]()

    class File(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            fetched.append((start, end))
            return content[start:end]

    class Buffered(AbstractFileSystem):  # type: ignore[misc]
        protocol = "buffered"

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            return {"name": path, "size": len(content), "type": "file", "etag": "1"}

        def _open(self, path: str, mode: str = "rb", **options: Any) -> File:
            return File(self, path, mode, **options)

    fsspec.register_implementation("buffered", Buffered, clobber=True)
    store, url = ObjectStore(), "buffered://host/a.tar"
    version = store.stat(url).version
    for start, size in ((0, 1), (1000, 70_000), (len(content) - 5, 5)):
        assert bytes(store.read(url, start, size, version).data) == content[start : start + size]
    assert fetched == [(0, 1), (1000, 71_000), (len(content) - 5, len(content))]
    with pytest.raises(LoaderError, match="fewer than indexed"):
        store.read(url, len(content) - 5, 6, version)
    with pytest.raises(LoaderError, match="fewer than indexed"):
        store.read(url, len(content), 6, version)
