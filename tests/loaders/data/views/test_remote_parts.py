"""Parts of remote data, and remote joined with local data: fetched ahead, same stream as local files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_folder import write_folder
from range_server import RangeServer, serve_ranges
from served_rows import Row, serve

from penstock.loaders import create_loader, open_source
from penstock.loaders.data.remote.remote_source import RemoteSource
from penstock.loaders.data.sources.contract import is_fetching
from penstock.loaders.data.sources.data import Data
from penstock.pipelines import imagenet_train

NUM_PHOTOS = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    """A server of two tars of photos in tmp_path / "tars"."""
    photos = write_folder(tmp_path / "photos", NUM_PHOTOS)
    (tmp_path / "tars").mkdir()
    for part in range(2):
        with tarfile.open(tmp_path / "tars" / f"{part}.tar", "w") as tar:
            for file in sorted(photos.rglob("*.jpg"))[part::2]:
                tar.add(file, arcname=str(file.relative_to(photos)))
    with serve_ranges(tmp_path / "tars") as served:
        yield served


def serve_epoch(source: Any, **settings: Any) -> tuple[list[Row], Any]:
    settings = {"batch_size": 6, "seed": 2, "workers": 2, "with_index": True, **settings}
    with create_loader(source, pipeline=imagenet_train(24), dtype=torch.uint8, **settings) as loader:
        return serve(loader), loader.stats()


def test_a_list_of_urls_is_one_source_and_its_parts_are_fetched_ahead(server: RangeServer) -> None:
    remote = open_source([f"{server.url}/{part}.tar" for part in range(2)])
    assert isinstance(remote, RemoteSource)
    local = open_source([server.root / f"{part}.tar" for part in range(2)])
    part = open_source(remote, subset="::-2", max_per_class=5)
    assert is_fetching(part)
    expected, _ = serve_epoch(open_source(local, subset="::-2", max_per_class=5), decoder="simplejpeg")
    server.delay_s, server.most_at_once = 0.05, 0
    found, stats = serve_epoch(part, workers_are="threads")
    assert found == expected
    assert len(found) == 12
    assert server.most_at_once > 2  # without announcements there would be one
    assert stats.requests == part.traffic[0] > 0  # type: ignore[attr-defined]
    assert serve_epoch(part, workers_are="processes", decoder="simplejpeg")[0] == expected


@pytest.mark.parametrize("settings", [{"workers_are": "threads"}, {"workers": 0, "decoder": "simplejpeg"}], ids=str)
def test_remote_and_local_data_can_be_one_source(server: RangeServer, tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = tmp_path / "photos"
    urls = [f"{server.url}/{part}.tar" for part in range(2)]
    expected, _ = serve_epoch([folder, server.root / "0.tar", folder, server.root / "1.tar"], decoder="simplejpeg")
    joined = open_source([folder, urls[0], folder, urls[1]])
    assert isinstance(joined, Data)
    found, stats = serve_epoch(joined, **settings)
    assert found == expected
    assert len(found) == 120
    assert stats.requests > 0
    server.delay_s = 0.05
    joined.announce(np.arange(len(joined)))
    fetchers = [source._fetcher for source in joined.parts if isinstance(source, RemoteSource)]
    assert all(any(fetcher.are_coming(range(NUM_PHOTOS // 2))) for fetcher in fetchers)
    assert open_source([urls[0], open_source(folder, subset=[0, 9])]).has_room  # type: ignore[attr-defined]
    joined.forget()
    assert not any(any(fetcher.are_coming(range(NUM_PHOTOS // 2))) for fetcher in fetchers)
