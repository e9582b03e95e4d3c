"""Arrow and Parquet files by URL: what is fetched, what a change or a fault does, and that the rest is as on a disk."""

from __future__ import annotations

import contextlib
import copy
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
from penstock.loaders.data.arrow import arrow_url
from penstock.loaders.data.files.content_probe import NUM_PROBES
from penstock.loaders.data.remote import object_store
from penstock.pipelines.errors import LoaderError

IMAGE_BYTES, ROWS = 20_000, 60
IMAGES = [b"%05d" % number * (IMAGE_BYTES // 5) for number in range(ROWS)]
LABELS = [("cat", "dog", "eel")[number % 3] for number in range(ROWS)]
STRUCTS = [{"path": f"{number}.jpg", "bytes": image} for number, image in enumerate(IMAGES)]
# Other columns before, between and behind, of types that lie in different numbers of buffers.
TABLES: dict[str, dict[str, Any]] = {
    "bytes": {"image": pa.array(IMAGES), "label": pa.array(LABELS)},
    "large bytes, dictionary": {
        "nothing": pa.nulls(ROWS),
        "image": pa.array(IMAGES, pa.large_binary()),
        "points": pa.array([[number, 2] for number in range(ROWS)]),
        "label": pa.array(LABELS).dictionary_encode(),
    },
    "struct": {
        "label": pa.array(LABELS),
        "views": pa.array(["a", "a longer text that is out of line"] * (ROWS // 2), pa.string()),
        "image": pa.array(STRUCTS),
        "flag": pa.array([True, None] * (ROWS // 2)),
    },
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(object_store, "_RETRY_DELAYS_S", (0.01,))
    with serve_ranges(tmp_path) as served:
        yield served


def write(path: Path, table: pa.Table, *, is_stream: bool = False, **options: Any) -> Path:
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, make(file, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=20)
    return path


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("name", TABLES)
def test_images_are_found_without_being_fetched(
    server: RangeServer, name: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_url, "_WINDOW", 1 << 12)
    path = write(server.root / "data.arrow", pa.table(TABLES[name]), is_stream=is_stream)
    source: Any = open_source(f"{server.url}/data.arrow")
    assert server.num_bytes < 0.1 * path.stat().st_size
    assert server.requests["all"] < 20 + NUM_PROBES
    local: Any = open_source(path)
    assert (source.fingerprint, source.classes) == (local.fingerprint, local.classes)
    assert [source.read(index) for index in range(ROWS)] == IMAGES
    before = server.requests["all"]
    assert open_source(f"{server.url}/data.arrow").content == source.content  # type: ignore[attr-defined]
    assert server.requests["all"] == before + 1
    assert source.refreshed() is source


def test_rows_that_name_images_by_url(server: RangeServer) -> None:
    rows = [{"path": "a.jpg", "bytes": None}, {"path": "none.jpg", "bytes": None}, {"path": "x.jpg", "bytes": b"here"}]
    (server.root / "data").mkdir()
    (server.root / "data/a.jpg").write_bytes(b"there")
    for write_rows, name in ((write, "d.arrow"), (lambda path, table: parquet.write_table(table, path), "d.parquet")):
        write_rows(server.root / "data" / name, pa.table({"image": rows, "label": [0, 1, 2]}))
        source: Any = open_source(f"{server.url}/data/{name}")
        assert [source.read(0), source.read(2)] == [b"there", b"here"]
        with pytest.raises(LoaderError, match=r"E-MISSING.* sample=1 .*none\.jpg"):
            source.read(1)


def test_what_cannot_be_read_is_what_it_is_on_a_disk(server: RangeServer) -> None:
    table = pa.table(TABLES["bytes"])
    whole = write(server.root / "whole.arrow", table, is_stream=True).read_bytes()
    file = write(server.root / "file.arrow", table).read_bytes()
    packed = write(server.root / "p.arrow", table, options=pa.ipc.IpcWriteOptions(compression="zstd")).read_bytes()
    cases = [whole[:-8], whole[:-30_000], whole[:300], file[:-4], b"", b"ARROW1", b"nonsense" * 99, packed]
    for number, data in enumerate(cases):
        path = server.root / f"{number}.arrow"
        path.write_bytes(data)
        codes = []
        for place in (path, f"{server.url}/{path.name}"):
            with pytest.raises(LoaderError) as caught:
                open_source(place)
            codes.append(caught.value.code)
        assert codes[0] == codes[1], number
    assert codes == ["E-UNSUPPORTED"] * 2


def test_damaged_metadata_never_breaks_the_reader(server: RangeServer) -> None:
    data = bytearray(write(server.root / "whole.arrow", pa.table(TABLES["struct"]), is_stream=True).read_bytes())
    random = np.random.default_rng(4)
    for trial in range(60):
        damaged = bytearray(data)
        for at in random.integers(0, 3000, 3).tolist():
            damaged[at] ^= 1 << int(random.integers(8))
        (server.root / f"{trial}.arrow").write_bytes(damaged)
        with contextlib.suppress(LoaderError, ValueError):
            source: Any = open_source(f"{server.url}/{trial}.arrow")
            assert len(source) <= ROWS


def test_a_file_that_is_replaced_is_refused(server: RangeServer) -> None:
    parquet.write_table(pa.table({"image": IMAGES, "label": LABELS}), server.root / "d.parquet", row_group_size=20)
    source: Any = open_source(f"{server.url}/d.parquet")
    assert source.read(1) == IMAGES[1]
    server.etags["/d.parquet"] = "another"
    with pytest.raises(LoaderError, match=r"E-CHANGED.*sample=59 .*d\.parquet"):
        source.read(59)
    assert source.refreshed() is not source
    assert source.refreshed().read(59) == IMAGES[59]


def test_row_groups_are_fetched_once(server: RangeServer, tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES, "label": LABELS})
    parquet.write_table(table, server.root / "d.parquet", row_group_size=10, compression="none", use_dictionary=False)
    size = (server.root / "d.parquet").stat().st_size
    options: dict[str, Any] = {"local_cache": tmp_path / "copy", "cache_bytes": 4 * 10 * IMAGE_BYTES}
    source: Any = open_source(f"{server.url}/d.parquet", bytes_ahead=1, **options)
    opened = server.num_bytes
    assert opened < 0.2 * size
    assert server.requests["all"] <= 2 + 2 + 6 + NUM_PROBES  # two looks at the footer, and the labels of each group
    assert source.has_room
    source.announce(np.arange(11, 13))
    assert source.read(12) == IMAGES[12]
    assert source.has_room  # taken
    source.announce(np.arange(ROWS))
    source.forget()
    assert [source.read(index) for index in range(ROWS)] == IMAGES
    fetched = server.num_bytes
    again: Any = copy.copy(source)  # as in a worker: its state is taken and set
    assert [again.read(index) for index in range(ROWS)] == IMAGES
    assert server.num_bytes == fetched < opened + 1.2 * size
    assert source.traffic[0] > 0
    state = {name: value for name, value in source.__getstate__().items() if name not in ("_labels", "_rows")}
    assert os.fsencode(server.url) not in pickle.dumps(state)
    with pytest.raises(ValueError, match="only data by URL takes bytes_ahead"):
        open_source(server.root / "d.parquet", bytes_ahead=1)


def test_announced_groups_are_bounded(server: RangeServer) -> None:
    parquet.write_table(pa.table({"image": IMAGES, "label": LABELS}), server.root / "d.parquet", row_group_size=10)
    source: Any = open_source(f"{server.url}/d.parquet", bytes_ahead=15 * IMAGE_BYTES)
    source.announce(np.arange(0, 10))
    assert source.has_room
    source.announce(np.arange(10, 20))
    assert not source.has_room
    source.forget()
    assert source.has_room
