"""Every kind of source serves the stream of the class folder with the same files: same order, labels and pixels."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nginx_server import NGINX, NO_NGINX, serve_by_nginx
from photo_folder import write_folder
from photo_tables import photo_table, write_arrow, write_parquet, write_saved
from range_server import serve_ranges
from s3_server import serve_s3
from served_rows import Row, serve
from tar_files import write_tar

from penstock.loaders import create_loader, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train

NUM_PHOTOS, SHARDS = 41, 3
Made = tuple[Any, dict[str, Any]]  # what create_loader takes: source and options


class Photos:
    """A class folder, and the same files in other forms, each made when it is first asked for."""

    def __init__(self, folder: Path, scratch: Path, url: str) -> None:
        source = open_source(write_folder(folder, NUM_PHOTOS))
        assert isinstance(source, ImageFolder)
        self.folder, self.scratch, self.url, self.source = folder, scratch, url, source
        self.labels = source.labels(np.arange(len(source))).tolist()
        self.paths = [os.fsdecode(source.path(index)) for index in range(len(source))]
        self.names = [os.fsdecode(name) for name in source.classes]
        self.data = [source.read(index) for index in range(len(source))]
        self.servers = contextlib.ExitStack()
        self.bucket: Any = None  # boto3's client
        self._made: dict[str, Made] = {}

    def get(self, kind: str) -> Made:
        """Return the data in the form `kind`."""
        if kind == "tars by nginx" and not NGINX:
            pytest.skip(NO_NGINX)
        if kind not in self._made:
            self._made[kind] = KINDS[kind](self)
        return self._made[kind]

    def shards(self) -> list[range]:
        """Split the photos, in order."""
        ends = [NUM_PHOTOS * shard // SHARDS for shard in range(SHARDS + 1)]
        return [range(a, b) for a, b in itertools.pairwise(ends)]


def make_tars(photos: Photos) -> str:
    for number, shard in enumerate(photos.shards()):
        files = [
            (f"sample{index:05}.{suffix}", content)
            for index in shard
            for suffix, content in (("cls", b"%d" % photos.labels[index]), ("jpg", photos.data[index]))
        ]
        write_tar(photos.scratch / f"train-{number:04}.tar", files)
    return f"train-{{0000..{SHARDS - 1:04}}}.tar"


def as_tars(photos: Photos) -> Made:
    return str(photos.scratch / make_tars(photos)), {}


def as_remote_tars(photos: Photos) -> Made:
    return f"{photos.url}/{make_tars(photos)}", {}


def as_copied_tars(photos: Photos) -> Made:
    return f"{photos.url}/{make_tars(photos)}", {"local_cache": photos.scratch / "copy"}


def as_tars_by_nginx(photos: Photos) -> Made:
    url = photos.servers.enter_context(serve_by_nginx(photos.scratch, photos.scratch / "nginx"))
    return f"{url}/{make_tars(photos)}", {}


def as_s3(photos: Photos, name: str) -> Made:
    if photos.bucket is None:
        photos.bucket = photos.servers.enter_context(serve_s3()).client
        photos.bucket.create_bucket(Bucket="photos")
        make_tars(photos)
        for other in ("train-0000.json", "val-0000.tar", "more/train-0001.tar"):  # which the pattern does not match
            photos.bucket.put_object(Bucket="photos", Key=other, Body=b"another")
        for path in (*photos.scratch.glob("train-*.tar"), *photos.folder.rglob("*.jpg")):
            key = f"images/{path.relative_to(photos.folder)}" if path.suffix == ".jpg" else path.name
            photos.bucket.upload_file(str(path), "photos", key)
    return f"s3://photos/{name}", {}


def as_csv(photos: Photos) -> Made:
    path = photos.scratch / "train.csv"
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows(zip((os.path.relpath(p, path.parent) for p in photos.paths), photos.labels, strict=True))
    return path, {}


def as_json_lines(photos: Photos) -> Made:
    path = photos.scratch / "train.jsonl"
    names = [photos.names[label] for label in photos.labels]
    lines = [json.dumps({"file": p, "kind": name}) for p, name in zip(photos.paths, names, strict=True)]
    path.write_text("\n".join(lines))
    return path, {"image": "file", "label": "kind"}


def as_urls(photos: Photos) -> list[str]:
    """Serve the files of the folder; return their URLs."""
    if not (photos.scratch / "files").exists():
        (photos.scratch / "files").symlink_to(photos.folder)
    return [f"{photos.url}/files/{os.path.relpath(path, photos.folder)}" for path in photos.paths]


def as_remote_table(photos: Photos) -> Made:
    as_urls(photos)
    path, _ = as_csv(photos)
    text = path.read_text().replace(os.path.relpath(photos.folder, photos.scratch) + "/", "files/")
    (photos.scratch / "urls.csv").write_text(text)
    return f"{photos.url}/urls.csv", {"requests": 3}


def as_table_of_urls(photos: Photos) -> Made:
    as_remote_table(photos)
    return photos.scratch / "urls.csv", {"root": photos.url, "local_cache": photos.scratch / "images"}


def as_remote(photos: Photos, kind: str, **options: Any) -> Made:
    """Serve the files of a kind that is a path or a pattern, by URL."""
    path, _ = photos.get(kind)
    number = SHARDS - 1
    name = os.path.basename(path).replace("*", f"{{0..{number}}}")
    return f"{photos.url}/{name}", options


def as_dataset(photos: Photos) -> Made:
    import datasets

    images = [{"bytes": data, "path": None} for data in photos.data]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=photos.names)})
    return datasets.Dataset.from_dict({"image": images, "label": photos.labels}, features=kinds), {}


def as_saved_dataset(photos: Photos) -> Made:
    photos.get("Dataset in memory")[0].save_to_disk(photos.scratch / "saved", num_shards=SHARDS)
    return f"{photos.url}/saved/", {"local_cache": photos.scratch / "copies"}


def as_ordered_dataset(photos: Photos) -> Made:
    """Rows that lie the other way round, with the order that puts them right."""
    order = list(range(NUM_PHOTOS))[::-1]
    return write_saved(photos.scratch / "ordered", photo_table(photos.source).take(order), order=order), {}


def as_remote_cache(photos: Photos) -> Made:
    with open_loader((photos.folder, {}), backend="hdf5", cache=photos.scratch / "made.h5"):
        pass
    return f"{photos.url}/made.h5", {"local_cache": photos.scratch / "caches"}


def as_arrow(photos: Photos) -> Made:
    table = photo_table(photos.source)
    for number, shard in enumerate(photos.shards()):
        write_arrow(photos.scratch / f"data-{number}.arrow", table.slice(shard[0], len(shard)), stream=False, rows=5)
    return str(photos.scratch / "data-*.arrow"), {}


def as_parquet(photos: Photos) -> Made:
    return write_parquet(photos.scratch / "data.parquet", photo_table(photos.source), rows=NUM_PHOTOS), {}


KINDS: dict[str, Callable[[Photos], Made]] = {
    "list of pairs": lambda photos: (list(zip(photos.paths, photos.labels, strict=True)), {}),
    "CSV": as_csv,
    "JSON lines": as_json_lines,
    "tars": as_tars,
    "Arrow": as_arrow,
    "Parquet": as_parquet,
    "Dataset in memory": as_dataset,
    "saved dataset in another order": as_ordered_dataset,
    "tars over HTTP": as_remote_tars,
    "tars over HTTP, copied": as_copied_tars,
    "list of pairs over HTTP": lambda photos: (list(zip(as_urls(photos), photos.labels, strict=True)), {}),
    "CSV over HTTP": as_remote_table,
    "CSV of images over HTTP, copied": as_table_of_urls,
    "folder in S3": lambda photos: as_s3(photos, "images/"),
    "pattern of images in S3": lambda photos: as_s3(photos, "images/*.jpg"),
    "Arrow over HTTP": lambda photos: as_remote(photos, "Arrow", local_cache=photos.scratch / "copies"),
    "Parquet over HTTP": lambda photos: as_remote(photos, "Parquet"),
    "Parquet over HTTP, copied": lambda photos: as_remote(photos, "Parquet", local_cache=photos.scratch / "groups"),
    "saved dataset over HTTP": as_saved_dataset,
    "HDF5 over HTTP": as_remote_cache,
    "subset of tars over HTTP": lambda photos: (as_remote_tars(photos)[0], {"subset": f":{NUM_PHOTOS}"}),
    "tars by nginx": as_tars_by_nginx,
    "tars in S3": lambda photos: as_s3(photos, "train-*.tar"),
}
ENGINES: dict[str, dict[str, Any]] = {
    "2 threads": {"workers": 2, "workers_are": "threads"},
    "2 processes": {"workers": 2, "workers_are": "processes"},
    "hdf5": {"backend": "hdf5", "workers": 2},
    "dali": {"backend": "dali", "workers": 2, "readers": 2},
}
# One of each class of source, which is all that an engine and a rank see of the data.
DISTINCT = (
    *("CSV", "tars", "Parquet", "Dataset in memory", "tars over HTTP, copied", "CSV over HTTP"),
    *("CSV of images over HTTP, copied", "folder in S3", "Parquet over HTTP, copied", "HDF5 over HTTP"),
    "subset of tars over HTTP",
)
CASES = [(kind, "2 threads") for kind in KINDS]
CASES += [(kind, engine) for kind in DISTINCT for engine in ENGINES if engine != "2 threads"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Photos]:
    scratch = tmp_path_factory.mktemp("forms")
    with serve_ranges(scratch) as server:
        photos = Photos(tmp_path_factory.mktemp("photos"), scratch, server.url)
        with photos.servers:
            yield photos


def open_loader(made: Made, **settings: Any) -> Loader:
    source, options = made
    settings = {"batch_size": 6, "seed": 5, "workers": 0, **options, **settings}
    return create_loader(source, pipeline=imagenet_train(24), dtype=torch.uint8, with_index=True, **settings)


@pytest.fixture(scope="module")
def expected(photos: Photos) -> list[Row]:
    with open_loader((photos.folder, {})) as loader:
        return serve(loader) + serve(loader)


@pytest.mark.parametrize(("kind", "engine"), CASES)
def test_the_stream_is_that_of_the_folder(photos: Photos, expected: list[Row], kind: str, engine: str) -> None:
    settings = dict(ENGINES[engine])
    if settings.get("backend") == "hdf5" and kind != "HDF5 over HTTP":
        settings["cache"] = photos.scratch / f"{kind.replace(' ', '-')}.h5"
    with open_loader(photos.get(kind), **settings) as loader:
        served = serve(loader) + serve(loader)
    if engine == "dali":  # which resizes with sums of its own
        assert [row[:2] for row in served] == [row[:2] for row in expected]
    else:
        assert served == expected


@pytest.mark.parametrize("kind", DISTINCT)
def test_ranks_share_it_and_go_on_where_they_stopped(photos: Photos, expected: list[Row], kind: str) -> None:
    """Each rank begins with Python's decoder, and goes on with another opening of the data."""
    parts = []
    for rank in range(2):
        place = {"batch_size": 3, "rank": rank, "world_size": 2}
        with open_loader(photos.get(kind), decoder="simplejpeg", **place) as loader:
            rows = serve(loader, 2)
            state = json.loads(json.dumps(loader.state_dict()))
        with open_loader(photos.get(kind), **place) as loader:
            loader.load_state_dict(state)
            parts.append(rows + serve(loader))
    joined = [row for first in range(0, len(parts[0]), 3) for part in parts for row in part[first : first + 3]]
    assert joined == expected[: NUM_PHOTOS // 6 * 6]
