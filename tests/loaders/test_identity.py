"""The fingerprint of data changes with whatever is served, in its order, and never with where or how it lies."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image
from range_server import serve_ranges
from tar_files import write_tar

from penstock.loaders import Boxes, Masks, create_loader, open_source, with_fields
from penstock.loaders.data.files import content_probe
from penstock.loaders.data.sources.contract import Source
from penstock.pipelines import ImagePipeline

N = 6
WHOLE = ImagePipeline(size=(6, 6), crop="full", flip=0.0)


def bmp(seed: int) -> bytes:
    """A picture of noise; all of them have one size in bytes."""
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)).save(data, "BMP")
    return data.getvalue()


class Data:
    """What a data set serves, row by row; `write` puts it into a folder."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.images = [int(seed) for seed in rng.permutation(1000)[:N]]
        self.labels = rng.integers(0, 3, N).tolist()
        self.labels[:3] = [0, 1, 2]
        self.masks = rng.integers(0, 200, N).tolist()
        self.boxes = [[[0.0, 0.0, 1.0 + n, 2.0]] for n in range(N)]
        self.texts = [f"text {n}" for n in rng.integers(0, 99, N)]

    def write(self, folder: Path, kind: str) -> Source:
        folder.mkdir(parents=True, exist_ok=True)
        files = list(map(bmp, self.images))
        table = pa.table({"image": files, "label": self.labels})
        if kind == "arrays":
            pixels = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
            source = open_source((pixels, np.array(self.labels)))
        elif kind == "parquet":
            parquet.write_table(table, folder / "a.parquet", row_group_size=4, compression="none")
            source = open_source(folder / "a.parquet")
        elif kind == "arrow":
            with pa.ipc.new_file(folder / "a.arrow", table.schema) as file:
                file.write_table(table)
            source = open_source(folder / "a.arrow")
        elif kind == "dataset":
            source = open_source(datasets.Dataset(table), image="image", label="label")
        elif kind == "tar":  # whose samples are told apart by names
            members = [(f"{seed:03}.bmp", file) for seed, file in zip(self.images, files, strict=True)]
            labels = [
                (f"{seed:03}.cls", str(label).encode()) for seed, label in zip(self.images, self.labels, strict=True)
            ]
            source = open_source(write_tar(folder / "a.tar", [*members, *labels]))
        else:
            for seed, file in zip(self.images, files, strict=True):
                (folder / f"{seed:03}.bmp").write_bytes(file)
            rows = zip(self.images, self.labels, strict=True)
            lines = [json.dumps({"path": f"{seed:03}.bmp", "label": label}) for seed, label in rows]
            (folder / "t.jsonl").write_text("\n".join(lines))
            source = open_source(folder / "t.jsonl")
        (folder / "masks").mkdir(exist_ok=True)
        paths = [folder / "masks" / f"{n}.png" for n in range(N)]
        for path, level in zip(paths, self.masks, strict=True):
            Image.fromarray(np.full((6, 6), level, np.uint8)).save(path)
        return with_fields(source, mask=Masks(paths), boxes=Boxes(self.boxes), text=self.texts)


def exchange(values: list[Any], rng: np.random.Generator) -> None:
    """Put two different values in each other's place."""
    at = int(rng.integers(N))
    other = next(n for n in range(N) if values[n] != values[at])
    values[at], values[other] = values[other], values[at]


KINDS = ["arrays", "parquet", "arrow", "dataset", "tar", "table"]
CHANGES: dict[str, Callable[[Data, np.random.Generator], None]] = {
    "two rows": lambda data, rng: exchange(data.images, rng),
    "an image": lambda data, rng: data.images.__setitem__(int(rng.integers(N)), 1001),
    "two labels": lambda data, rng: exchange(data.labels, rng),
    "a mask": lambda data, rng: data.masks.__setitem__(int(rng.integers(N)), 201),
    "two masks": lambda data, rng: exchange(data.masks, rng),
    "a box": lambda data, rng: data.boxes[int(rng.integers(N))][0].__setitem__(3, 5.5),
    "a text": lambda data, rng: data.texts.__setitem__(int(rng.integers(N)), "another"),
}


@pytest.mark.filterwarnings("ignore:the data has no labels")
@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_what_is_served_is_another_identity(tmp_path: Path, kind: str) -> None:
    """Two random data sets of each kind, each with seven changes; a copy elsewhere, at another time, is the same."""
    for number in range(2):
        rng = np.random.default_rng(number)
        data = Data(rng)
        before = data.write(tmp_path / f"{number}" / "a", kind).fingerprint
        copy = data.write(tmp_path / f"{number}" / "far" / "away", kind)
        assert copy.fingerprint == before
        for path in (tmp_path / f"{number}").rglob("*"):
            os.utime(path, (1e9, 1e9))
        assert data.write(tmp_path / f"{number}" / "a", kind).fingerprint == before
        for change, apply in CHANGES.items():
            if kind == "tar" and change == "two rows":
                continue  # the order of a tar is that of its members' names
            other = Data(np.random.default_rng(number))
            apply(other, rng)
            assert other.write(tmp_path / f"{number}" / change, kind).fingerprint != before, change


def test_probes_of_more_data_than_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_probe, "NUM_PROBES", 20)
    monkeypatch.setattr(content_probe, "PROBE_BYTES", 16)
    data, rng = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8), np.random.default_rng(1)
    sizes = rng.integers(0, 400, 500)
    sizes[7] = 30_000
    starts = np.cumsum(sizes) - sizes
    read: list[tuple[int, int]] = []

    def probe(order: np.ndarray) -> bytes:
        def look(name: bytes, start: int, count: int) -> bytes:
            read.append((start, count))
            return data[start : start + count].tobytes()

        return content_probe.probe_ranges([b"x"] * len(order), starts[order], sizes[order], look)

    plain = np.arange(len(sizes))
    assert probe(plain) == probe(plain)
    assert len(read) == 2 * 20
    assert all(0 < count <= 16 for _, count in read)
    assert len({probe(rng.permutation(plain)) for _ in range(20)} | {probe(plain), probe(plain[::-1])}) == 22


@pytest.mark.parametrize("kind", ["tar", "arrow", "parquet"])
@pytest.mark.parametrize("how", ["written over", "replaced"])
def test_a_file_of_equal_size_and_time_is_indexed_anew(tmp_path: Path, kind: str, how: str) -> None:
    path = tmp_path / f"x.{kind}"
    for labels in ([0, 1, 2], [2, 1, 0], [1, 1, 1]):
        new = path if how == "written over" else tmp_path / "new"
        table = pa.table({"image": [bmp(n) for n in range(3)], "label": labels})
        if kind == "tar":
            pairs = [((f"{n}.bmp", bmp(n)), (f"{n}.cls", str(label).encode())) for n, label in enumerate(labels)]
            write_tar(new, [member for pair in pairs for member in pair])
        elif kind == "arrow":
            with pa.ipc.new_file(new, table.schema) as file:
                file.write_table(table)
        else:
            parquet.write_table(table, new, compression="none", use_dictionary=False)
        os.replace(new, path)
        os.utime(path, (1.6e9, 1.6e9))
        assert open_source(path).labels(np.arange(3)).tolist() == labels


def test_a_local_copy_that_is_cut_ends_no_process(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    write_tar(tmp_path / "web" / "a.tar", [(f"{n:04}.bmp", bmp(n)) for n in range(2000)])
    pipeline = ImagePipeline(size=(6, 6), crop="full", flip=0.0)
    with serve_ranges(tmp_path / "web") as server:
        options = {"local_cache": tmp_path / "copy", "bytes_ahead": 1 << 16, "label": None}
        with create_loader(f"{server.url}/a.tar", pipeline=pipeline, batch_size=100, workers=0, **options) as loader:
            batches = iter(loader)
            seen = [next(batches)[0]]
            for name, size in (("table", 0), ("samples", 100)):
                for path in (tmp_path / "copy").rglob(name):
                    os.truncate(path, size)
            seen += [images for images, _ in batches]
    with create_loader(tmp_path / "web" / "a.tar", pipeline=pipeline, batch_size=100, workers=0, label=None) as loader:
        assert torch.equal(torch.cat(seen), torch.cat([images for images, _ in loader]))
    shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize("local", [False, True])
def test_a_server_without_versions_is_said_and_nothing_is_kept(tmp_path: Path, local: bool) -> None:
    (tmp_path / "web").mkdir()
    options: dict[str, Any] = {"local_cache": tmp_path / "copy"} if local else {}
    with serve_ranges(tmp_path / "web") as server:
        server.etags, server.has_dates = {"/a.tar": ""}, False
        for first in (0, 10):
            members = [(f"{n}.bmp", bmp(first + n)) for n in range(3)]
            write_tar(tmp_path / "web" / "a.tar", members)
            with (
                contextlib.nullcontext() if first else pytest.warns(UserWarning, match="neither ETag nor Last-Modified")
            ):
                source = open_source(f"{server.url}/a.tar", label=None, **options)
            assert [source.read(n) for n in range(3)] == [data for _, data in members]
    assert not list((tmp_path / "copy").rglob("samples")) if local else True


@pytest.mark.parametrize("kind", ["tar", "parquet", "table", "list"])
def test_a_local_copy_belongs_to_its_addresses(tmp_path: Path, kind: str) -> None:
    """Many servers make a version of a file's time and size, which files of several folders may have in common."""
    web, names = tmp_path / "web", ("left", "right")
    files = {name: [bmp(10 * at + n) for n in range(3)] for at, name in enumerate(names)}
    with serve_ranges(web) as server:
        for name in names:
            (web / name).mkdir(parents=True)
            rows = [(f"{n}.bmp", data) for n, data in enumerate(files[name])]
            for image, data in rows:
                (web / name / image).write_bytes(data)
            table = pa.table({"image": files[name], "label": [0, 1, 2]})
            parquet.write_table(table, web / name / "a.parquet", compression="none", use_dictionary=False)
            write_tar(web / name / "a.tar", rows)
            (web / name / "a.csv").write_text("path,label\n" + "".join(f"{n}.bmp,{n}\n" for n in range(3)))
            for path in (web / name).iterdir():
                server.etags[f"/{name}/{path.name}"] = f'"1600000000-{path.stat().st_size}"'
        for name in (*names, *names):
            folder = f"{server.url}/{name}"
            source: Any = [(f"{folder}/{n}.bmp", n) for n in range(3)]
            if kind != "list":
                source = f"{folder}/a.{'csv' if kind == 'table' else kind}"
            with create_loader(
                source, pipeline=WHOLE, batch_size=3, workers=0, dtype=torch.uint8, local_cache=tmp_path / "copy"
            ) as loader:
                (batch,) = loader
            expected = [np.asarray(Image.open(io.BytesIO(data))) for data in files[name]]
            assert torch.equal(batch[0], torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2)), name
        assert len([copy for copy in (tmp_path / "copy").iterdir() if copy.suffix != ".lock"]) == 2
