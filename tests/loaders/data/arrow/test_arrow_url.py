"""Arrow and Parquet files by URL: what is fetched, changes and faults; anything else equals files on a disk."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from range_server import RangeServer, serve_ranges

from penstock.loaders import open_source
from penstock.loaders.data.arrow import parquet_url
from penstock.loaders.data.files.content_probe import NUM_PROBES
from penstock.loaders.data.requests import request_retries
from penstock.loaders.data.samples.columns import ArrayColumn, BytesColumn
from penstock.pipelines.errors import LoaderError

IMAGE_BYTES, ROWS = 20_000, 60
IMAGES = [b"%05d" % number * (IMAGE_BYTES // 5) for number in range(ROWS)]
LABELS = [("cat", "dog", "eel")[number % 3] for number in range(ROWS)]
TABLE = pa.table({"image": IMAGES, "label": LABELS})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.01)
    with serve_ranges(tmp_path) as served:
        yield served


def write(path: Path, table: pa.Table, *, is_stream: bool = False, **options: Any) -> Path:
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=20)
    return path


def test_an_arrow_file_is_copied_once(server: RangeServer, tmp_path: Path) -> None:
    for is_stream in (True, False):
        path = write(server.root / f"{is_stream}.arrow", TABLE, is_stream=is_stream)
        url, before = f"{server.url}/{path.name}", server.num_bytes
        with pytest.raises(LoaderError, match=r"E-MISUSE.*pass local_cache=FOLDER"):
            open_source(url)
        with pytest.raises(LoaderError, match=r"E-NOSPC.*more than local_bytes=1,000"):
            open_source(url, local_cache=tmp_path / "copy", local_bytes=1000)
        source: Any = open_source(url, local_cache=tmp_path / "copy")
        assert server.num_bytes - before == path.stat().st_size
        local: Any = open_source(path)
        assert (source.fingerprint, source.classes) == (local.fingerprint, local.classes)
        assert [source.read(index) for index in range(ROWS)] == IMAGES
        sent = server.requests["all"]
        assert open_source(url, local_cache=tmp_path / "copy").content == source.content  # type: ignore[attr-defined]
        assert server.requests["all"] == sent + 1
        other: Any = open_source(url, local_cache=tmp_path / "another machine")
        assert other.content == source.content


def test_an_arrow_file_that_is_replaced_is_copied_again(server: RangeServer, tmp_path: Path) -> None:
    write(server.root / "d.arrow", TABLE)
    source: Any = open_source(f"{server.url}/d.arrow", local_cache=tmp_path / "copy")
    write(server.root / "d.arrow", TABLE.take(list(range(ROWS))[::-1]))
    server.etags["/d.arrow"] = "another"
    again: Any = open_source(f"{server.url}/d.arrow", local_cache=tmp_path / "copy")
    assert again.read(0) == source.read(ROWS - 1) == IMAGES[-1]
    assert again.fingerprint != source.fingerprint


def test_rows_with_urls_of_images_are_read(server: RangeServer, tmp_path: Path) -> None:
    rows = [{"path": "a.jpg", "bytes": None}, {"path": "none.jpg", "bytes": None}, {"path": "x.jpg", "bytes": b"here"}]
    (server.root / "data").mkdir()
    (server.root / "data/a.jpg").write_bytes(b"there")
    table = pa.table({"image": rows, "label": [0, 1, 2]})
    parquet.write_table(table, server.root / "data/d.parquet")
    source: Any = open_source(f"{server.url}/data/d.parquet")
    assert [source.read(0), source.read(2)] == [b"there", b"here"]
    with pytest.raises(LoaderError, match=r"E-MISSING.* sample=1 .*none\.jpg"):
        source.read(1)
    write(server.root / "data/d.arrow", table)  # the copy does not include the images
    with pytest.raises(LoaderError, match=r"E-MISSING.*a\.jpg.*a row names this file, but it does not exist"):
        open_source(f"{server.url}/data/d.arrow", local_cache=tmp_path / "copy")


def test_unreadable_files_give_the_same_errors_as_on_a_disk(server: RangeServer, tmp_path: Path) -> None:
    whole = write(server.root / "whole.arrow", TABLE, is_stream=True).read_bytes()
    file = write(server.root / "file.arrow", TABLE).read_bytes()
    packed = write(server.root / "p.arrow", TABLE, options=pa.ipc.IpcWriteOptions(compression="zstd")).read_bytes()
    cases = [whole[:-8], whole[:-30_000], whole[:300], file[:-4], b"", b"ARROW1", b"nonsense" * 99, packed]
    for number, data in enumerate(cases):
        path = server.root / f"{number}.arrow"
        path.write_bytes(data)
        codes = []
        for place, options in ((path, {}), (f"{server.url}/{path.name}", {"local_cache": tmp_path / "copy"})):
            with pytest.raises(LoaderError) as caught:
                open_source(place, **options)
            codes.append(caught.value.code)
        assert codes[0] == codes[1], number
    assert codes == ["E-UNSUPPORTED"] * 2


def test_row_groups_are_fetched_once(server: RangeServer, tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES, "label": LABELS})
    parquet.write_table(table, server.root / "d.parquet", row_group_size=10, compression="none", use_dictionary=False)
    size = (server.root / "d.parquet").stat().st_size
    options: dict[str, Any] = {"local_cache": tmp_path / "copy", "cache_bytes": 4 * 10 * IMAGE_BYTES}
    source: Any = open_source(f"{server.url}/d.parquet", bytes_ahead=1, **options)
    opened = server.num_bytes
    assert opened < 0.2 * size
    assert server.requests["all"] <= 2 + 2 + 6 + NUM_PROBES  # two reads of the footer, then the labels of each group
    assert source.has_room
    source.announce(np.arange(11, 13))
    assert source.read(12) == IMAGES[12]
    assert source.has_room  # taken
    source.announce(np.arange(ROWS))
    source.forget()
    assert [source.read(index) for index in range(ROWS)] == IMAGES
    fetched = server.num_bytes
    again: Any = copy.copy(source)  # as in a worker: its state is saved and restored
    assert [again.read(index) for index in range(ROWS)] == IMAGES
    assert server.num_bytes == fetched < opened + 1.2 * size
    assert source.traffic[0] > 0
    state = {
        name: value
        for name, value in source.__getstate__().items()
        if not isinstance(value, (ArrayColumn, BytesColumn))
    }
    assert os.fsencode(server.url) not in pickle.dumps(state)
    with pytest.raises(ValueError, match="bytes_ahead can only be used for data at URLs"):
        open_source(server.root / "d.parquet", bytes_ahead=1)


def test_files_are_copied_up_to_local_bytes(server: RangeServer, tmp_path: Path) -> None:
    for part in range(2):
        table = pa.table({"image": IMAGES[part::2], "label": LABELS[part::2]})
        parquet.write_table(table, server.root / f"{part}.parquet", row_group_size=10, compression="none")
    size = (server.root / "0.parquet").stat().st_size
    options: dict[str, Any] = {"local_cache": tmp_path / "copy", "local_bytes": size * 3 // 2, "cache_bytes": 1}
    for _ in range(2):
        source: Any = open_source(f"{server.url}/{{0..1}}.parquet", **options)
        opened = server.num_bytes
        assert [source.read(index) for index in range(ROWS)] == IMAGES[::2] + IMAGES[1::2]
        assert [path.name for path in (tmp_path / "copy").rglob("*.parquet")] == ["0.parquet"]
    assert server.num_bytes - opened == pytest.approx(size, rel=0.1)  # the second file is fetched


def test_a_full_disk_does_not_end_the_stream(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    parquet.write_table(TABLE, server.root / "d.parquet", row_group_size=20)
    source: Any = open_source(f"{server.url}/d.parquet", local_cache=tmp_path / "copy")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.warns(UserWarning, match="No space left on device: the Parquet files are read from") as warned:
        assert [source.read(index) for index in range(ROWS)] == IMAGES
    assert len(warned) == 1


def test_one_read_of_pyarrow_is_split_into_parallel_requests(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_url, "MAX_REQUEST_BYTES", 50_000)
    table = pa.table({"image": [np.random.default_rng(row).bytes(IMAGE_BYTES) for row in range(ROWS)]})
    parquet.write_table(table, server.root / "d.parquet", row_group_size=ROWS, use_dictionary=False)
    source: Any = open_source(f"{server.url}/d.parquet", requests=8, label=None)
    server.delay_s, server.most_at_once = 0.1, 0
    assert [source.read(index) for index in range(ROWS)] == table["image"].to_pylist()
    assert source.traffic[0] == len(source.plan_requests(np.arange(ROWS))) == ROWS * IMAGE_BYTES // 50_000 + 1
    assert 4 <= server.most_at_once <= 8


def test_announced_groups_are_bounded(server: RangeServer) -> None:
    parquet.write_table(pa.table({"image": IMAGES, "label": LABELS}), server.root / "d.parquet", row_group_size=10)
    source: Any = open_source(f"{server.url}/d.parquet", bytes_ahead=15 * IMAGE_BYTES)
    source.announce(np.arange(0, 10))
    assert source.has_room
    source.announce(np.arange(10, 20))
    assert not source.has_room
    source.forget()
    assert source.has_room


def test_groups_decoded_in_parallel_make_no_extra_requests(server: RangeServer) -> None:
    parquet.write_table(TABLE, server.root / "d.parquet", row_group_size=10)
    source: Any = open_source(f"{server.url}/d.parquet", requests=2)
    source.read(0)  # the footer is read once per process
    server.delay_s, server.most_at_once = 0.05, 0
    source.announce(np.arange(ROWS))
    assert [source.read(index) for index in range(ROWS)] == IMAGES
    assert server.most_at_once == 2
