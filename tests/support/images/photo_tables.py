"""Arrow and Parquet files, and data sets saved in Hugging Face's layout, with the images of a class folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.loaders.data.sources.contract import Source

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def features(classes: tuple[bytes, ...] | list[bytes]) -> dict[str, Any]:
    """Return Hugging Face's description of the columns `image` and `label`."""
    names = [name.decode() for name in classes]
    return {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}


def photo_table(folder: Source, *, declared: bool = True, kind: pa.DataType = IMAGE) -> pa.Table:
    """Return image and label of the samples of `folder`, in order; `declared`: with Hugging Face's metadata."""
    data = [folder.read(index) for index in range(len(folder))]
    names = [os.path.basename(os.fsdecode(folder.path(index))) for index in range(len(folder))]
    labels = folder.labels(np.arange(len(folder)))
    if kind == IMAGE:
        images = pa.array([{"bytes": d, "path": n} for d, n in zip(data, names, strict=True)], IMAGE)
    else:
        images = pa.array(data, kind)
    table = pa.table({"number": pa.array(range(len(data))), "image": images, "label": pa.array(labels)})
    info = json.dumps({"info": {"features": features(folder.classes)}}) if declared else ""
    return table.replace_schema_metadata({"huggingface": info} if info else None)


def write_arrow(path: Path, table: pa.Table, *, stream: bool = True, rows: int = 10, compression: str = "") -> Path:
    """Write `table` in record batches of `rows`."""
    options = pa.ipc.IpcWriteOptions(compression=compression or None)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_parquet(path: Path, table: pa.Table, rows: int = 10, **options: Any) -> Path:
    """Write `table` in row groups of `rows`."""
    pq.write_table(table, path, row_group_size=rows, **options)
    return path


def write_saved(folder: Path, table: pa.Table, shards: int = 2, order: list[int] | None = None) -> Path:
    """Write `table` like `save_to_disk`; with `order` like its first versions, which saved the order separately."""
    folder.mkdir(parents=True)
    size, files = -(-len(table) // shards), []
    for shard in range(shards):
        files.append({"filename": f"data-{shard:05d}-of-{shards:05d}.arrow"})
        write_arrow(folder / files[-1]["filename"], table.slice(shard * size, size).replace_schema_metadata(None))
    state: dict[str, Any] = {"_data_files": files, "_split": "train"}
    if order is not None:
        write_arrow(folder / "indices.arrow", pa.table({"indices": pa.array(order, pa.uint64())}), rows=7)
        state["_indices_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    info = json.loads((table.schema.metadata or {}).get(b"huggingface", b'{"info": {}}'))
    (folder / "dataset_info.json").write_text(json.dumps(info["info"]))
    return folder


def assert_same_samples(source: Source, folder: Source, order: list[int] | None = None) -> None:
    """Assert that `source` has the bytes and classes of `folder`, in its order or in `order`."""
    order = list(range(len(folder))) if order is None else order
    assert len(source) == len(order)
    assert [source.read(index) for index in range(len(source))] == [folder.read(index) for index in order]
    labels = folder.labels(np.array(order, np.int64))
    assert source.labels(np.arange(len(source))).tolist() == labels.tolist()
    assert source.classes == folder.classes
