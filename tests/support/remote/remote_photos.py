"""Photos in containers on a server as a source in the order of their class folder, and loaders of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from photo_folder import photo
from pyarrow import parquet
from range_server import RangeServer, serve_ranges
from tar_files import write_tar

from penstock.loaders import create_loader
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote.object_store import ObjectStore
from penstock.loaders.data.remote.remote_source import RemoteOptions, RemoteSource
from penstock.loaders.data.samples.samples_writer import SamplesWriter
from penstock.loaders.data.samples.version import Container
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train

PARTS = 3


def write_containers(root: Path, photos: ImageFolder) -> None:
    """Write containers of concatenated photos; photo i lies in container i % PARTS."""
    for part in range(PARTS):
        samples = [photos.read(index) for index in range(len(photos)) if index % PARTS == part]
        (root / f"{part}.bin").write_bytes(b"".join(samples))


def write_kinds(root: Path, count: int) -> None:
    """Write `count` photos into a new folder: as a.tar, and as files that a.csv lists."""
    root.mkdir()
    members = [(f"{n}.{suffix}", data) for n in range(count) for suffix, data in (("jpg", photo(n)), ("cls", b"0"))]
    write_tar(root / "a.tar", members)
    for n in range(count):
        (root / f"{n}.jpg").write_bytes(photo(n))
    (root / "a.csv").write_text("path,label\n" + "".join(f"{n}.jpg,0\n" for n in range(count)))


def write_row_groups(path: Path, photos: ImageFolder, rows: int) -> None:
    """Write the photos as a Parquet file with `rows` rows per row group."""
    images = [{"bytes": bytes(photos.read(index)), "path": None} for index in range(len(photos))]
    table = pyarrow.table({"image": images, "label": photos.labels(np.arange(len(photos)))})
    parquet.write_table(table, path, row_group_size=rows, compression="none")


@contextmanager
def serve_photos(root: Path, photos: ImageFolder) -> Iterator[RangeServer]:
    """Serve containers of the photos."""
    write_containers(root, photos)
    with serve_ranges(root) as server:
        yield server


def open_remote(server: RangeServer, photos: ImageFolder, **options: Any) -> RemoteSource:
    return open_at(server.url, photos, options)


def open_at(url: str, photos: ImageFolder, options: dict[str, Any]) -> RemoteSource:
    """Open the containers as a source in the order of the folder."""
    store = ObjectStore()
    urls = [f"{url}/{part}.bin" for part in range(PARTS)]
    writer = SamplesWriter(kind="remote files")
    for name in urls:
        writer.add_container(Container(name.encode(), *store.stat(name)))
    everything = np.arange(len(photos))
    sizes = np.array([len(photos.read(index)) for index in everything])
    starts = np.array([sizes[index % PARTS : index : PARTS].sum() for index in everything])
    writer.add_samples(everything % PARTS, starts, sizes, [b"%d.jpg" % index for index in everything])
    writer.classes, writer.labels = list(photos.classes), photos.labels(everything).astype(np.int32)
    return RemoteSource(writer.save(), RemoteOptions(**options), lambda rescan: open_at(url, photos, options))


def open_loader(source: Any, **settings: Any) -> Loader:
    settings = {"batch_size": 6, "seed": 2, "workers": 2, "with_index": True, **settings}
    return create_loader(source, pipeline=imagenet_train(24), dtype=torch.uint8, **settings)
