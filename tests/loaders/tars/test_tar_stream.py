"""The stream of tars: on every backend it is that of the class folder of the same files, sample by sample."""

from __future__ import annotations

import itertools
import json
import random
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import penstock_here
from photo_folder import write_folder
from tar_files import pack_folder, write_tar

from penstock.loaders import create_loader, open_source
from penstock.loaders.batch import Batch
from penstock.loaders.loader import Loader
from penstock.loaders.sources.contract import Source
from penstock.loaders.sources.view import View
from penstock.pipelines import imagenet_train
from penstock.pipelines.native.library import native_library

COUNT, BATCH, SIZE = 61, 12, 32
# name of a case -> (backend, options)
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "torch, in the process": ("torch", {"workers": 0, "decoder": "simplejpeg"}),
    "torch, 2 threads": ("torch", {"workers": 2, "workers_are": "threads", "decoder": "native"}),
    "torch, 2 processes": ("torch", {"workers": 2, "workers_are": "processes", "decoder": "simplejpeg"}),
    "torch, 2 processes, native": ("torch", {"workers": 2, "workers_are": "processes", "decoder": "native"}),
    "hdf5": ("hdf5", {"workers": 2}),
    "dali": ("dali", {"workers": 2, "readers": 2}),
}


class Shuffled(View):
    """A folder whose images are numbered as the tars number theirs."""

    def __init__(self, source: Source, order: list[int]) -> None:
        super().__init__(source, len(order), "shuffled")
        self._order = np.array(order)

    def _at(self, index: Any) -> Any:
        found = self._order[index]
        return int(found) if isinstance(index, int) else found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), COUNT)


def relative_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))


@pytest.fixture(scope="module")
def order() -> list[int]:
    return random.Random(5).sample(range(COUNT), COUNT)


@pytest.fixture(scope="module")
def tars(folder: Path, order: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos of `folder`, in another order, in five tars of other sizes and three formats; labels by folder."""
    names = relative_names(folder)
    root = tmp_path_factory.mktemp("tars")
    formats = itertools.cycle([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    for number, (first, last) in enumerate(itertools.pairwise([0, 3, 30, 31, 55, COUNT])):
        files = [(f"data/{names[i]}", (folder / names[i]).read_bytes()) for i in order[first:last]]
        write_tar(root / f"{number}.tar", files, next(formats))
    return root


def open_loader(source: Any, backend: str = "torch", **settings: Any) -> Loader:
    defaults = {"pipeline": imagenet_train(SIZE), "batch_size": BATCH, "dtype": torch.uint8, "seed": 7}
    return create_loader(source, backend=backend, **{**defaults, **settings})


Record = list[tuple[int, int, int, Any]]  # of each sample in a batch: epoch, index, label, CRC of its pixels


def record(batch: Batch) -> Record:
    pixels = batch.images.permute(0, 2, 3, 1).contiguous().numpy()
    crcs = [zlib.crc32(image.tobytes()) for image in pixels]
    return [(batch.epoch, *row) for row in zip(batch.index.tolist(), batch.labels.tolist(), crcs, strict=True)]


def serve(loader: Loader) -> list[Record]:
    served = []
    while loader.epoch < 2:
        served += [record(batch) for batch in loader.batches()]
    return served


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    name, options = BACKENDS[request.param]
    if options.get("decoder") == "native" and native_library() is None:
        pytest.skip("the native library was not built here")
    cache = {"cache": tmp_path_factory.mktemp("cache") / "x.h5"} if name == "hdf5" else {}
    return {"backend": name, **options, **cache}


@pytest.fixture(scope="module")
def reference(folder: Path, order: list[int], backend: dict[str, Any]) -> list[Record]:
    """Two epochs of the class folder; by DALI if the tars are served by it, whose pixels are rounded otherwise."""
    dali = backend if backend["backend"] == "dali" else {"workers": 0}
    with open_loader(Shuffled(open_source(folder), order), **dali) as loader:
        return serve(loader)


def test_the_stream_of_two_epochs(tars: Path, backend: dict[str, Any], reference: list[Record]) -> None:
    with open_loader(tars, **backend) as loader:
        assert serve(loader) == reference


def test_the_stream_of_two_ranks(tars: Path, backend: dict[str, Any], reference: list[Record]) -> None:
    ranks = []
    for rank in range(2):
        with open_loader(tars, **{**backend, "batch_size": BATCH // 2, "rank": rank, "world_size": 2}) as loader:
            ranks.append(serve(loader))
    assert [one + other for one, other in zip(*ranks, strict=True)] == reference


def test_the_stream_resumed_in_the_middle(tars: Path, backend: dict[str, Any], reference: list[Record]) -> None:
    stop = len(reference) // 4  # within the first epoch
    with open_loader(tars, **backend) as loader:
        head = [record(batch) for batch in itertools.islice(loader.batches(), stop)]
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(tars, **backend) as loader:
        loader.load_state_dict(state)
        assert head + serve(loader) == reference


def test_the_order_of_the_folder_gives_the_stream_of_the_folder(
    folder: Path, tmp_path: Path, backend: dict[str, Any], reference: list[Record]
) -> None:
    path = pack_folder(tmp_path / "x.tar", folder, relative_names(folder))
    settings = {**backend, **({"cache": tmp_path / "x.h5"} if "cache" in backend else {})}
    plain = backend if backend["backend"] == "dali" else {"workers": 0}
    with open_loader(path, **settings) as loader, open_loader(folder, **plain) as of_folder:
        ours = serve(loader)
        assert ours == serve(of_folder)
        assert ours != reference  # which is in another order
        assert loader.classes == of_folder.classes


def test_the_commands_take_tars(folder: Path, tmp_path: Path) -> None:
    path = pack_folder(tmp_path / "x.tar", folder, relative_names(folder))
    options = ("--size", 32, "--batch-size", 12, "--workers", 0, "--epochs", 1)
    lines = [penstock_here("iterate", data, *options) for data in (folder, path, tmp_path / "*.tar", tmp_path)]
    assert [line.returncode for line in lines] == [0] * 4
    assert lines[0].stdout.count("\n") == COUNT // BATCH
    assert {line.stdout for line in lines} == {lines[0].stdout}
    looked = penstock_here("doctor", path, "--size", 32)
    assert "61 images, 3 classes" in looked.stdout
    assert "in 1 tar file" in looked.stdout
    assert "data: a sample" in looked.stdout
