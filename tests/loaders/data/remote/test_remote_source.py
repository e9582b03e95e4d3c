"""RemoteSource: same stream as local files, from memory and from a local copy; failures."""

from __future__ import annotations

import os
import random
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from range_server import RangeServer, serve_ranges
from remote_photos import PARTS, open_loader, open_remote
from served_rows import Row, serve
from tar_files import write_tar

from penstock.loaders import open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.remote.object_store import is_url
from penstock.pipelines.native.rows import ROW

NUM_PHOTOS = 37


def test_a_second_epoch_is_served_from_the_local_copy(server: RangeServer, photos: ImageFolder, tmp_path: Path) -> None:
    source = open_remote(server, photos, local_cache=tmp_path / "copy", bytes_ahead=1)
    with open_loader(source, drop_last=False, workers=0) as loader:
        serve(loader)
        before = source.store.num_bytes
        serve(loader)
        assert source.store.num_bytes == before >= source.num_bytes
        assert loader.stats().fetched_bytes == before
        assert 0 < loader.stats().requests <= server.requests["all"]
    again = open_remote(server, photos, local_cache=tmp_path / "copy")
    assert again.local is not None
    assert again.local.has(np.arange(NUM_PHOTOS)).all()  # also for another process


def test_requests_run_concurrently_and_join_neighbours(server: RangeServer, photos: ImageFolder) -> None:
    server.delay_s = 0.05
    with open_loader(open_remote(server, photos), workers=1, workers_are="threads", shuffle=False) as loader:
        serve(loader)
    assert server.most_at_once > 2
    assert server.requests["all"] < NUM_PHOTOS - 8  # neighbours in a container share a request


def test_located_bytes_are_not_fetched_again_for_a_format_decoded_in_python(
    server: RangeServer, photos: ImageFolder, tmp_path: Path
) -> None:
    for options in ({}, {"local_cache": tmp_path / "copy"}):
        source = open_remote(server, photos, **options)
        some = np.arange(0, NUM_PHOTOS, 3)
        names = source.locate(some, np.zeros(len(some), ROW))
        before = source.store.requests
        assert [source.read(index) for index in some.tolist()] == [photos.read(index) for index in some.tolist()]
        assert source.store.requests == before
        del names  # with the bytes
        assert source.read(0) == photos.read(0)
        assert source.store.requests == before + (not options)


def test_bytes_ahead_are_bounded(server: RangeServer, photos: ImageFolder) -> None:
    source = open_remote(server, photos, bytes_ahead=1)
    with open_loader(source, workers=0) as loader:
        next(iter(loader))
        assert server.num_bytes < source.num_bytes / 2
    assert source.has_room


def test_bad_samples_are_replaced_without_affecting_their_neighbours(server: RangeServer, photos: ImageFolder) -> None:
    source = open_remote(server, photos)
    server.fault = lambda path, number: 404 if path == "/1.bin" else 0
    with open_loader(source, on_bad_sample="replace", workers=1) as loader:
        rows = serve(loader)
        bad = {entry.sample for entry in loader.ledger().bad}
    assert bad == {index for index in range(NUM_PHOTOS) if index % PARTS == 1} & (bad | {row[0] for row in rows})
    assert all(row[0] % PARTS != 1 for row in rows)


def test_damage_in_the_local_copy_is_detected_and_repaired(
    server: RangeServer, photos: ImageFolder, expected: list[Row], tmp_path: Path
) -> None:
    source = open_remote(server, photos, local_cache=tmp_path / "copy")
    with open_loader(source, drop_last=False) as loader:
        serve(loader)
    assert source.local is not None
    os.pwrite(source.local.fd, b"damage" * 500, int(source.local.offsets(np.array([5]))[0]) + 300)
    again = open_remote(server, photos, local_cache=tmp_path / "copy")
    with open_loader(again) as loader:
        assert serve(loader) + serve(loader) == expected
    assert again.local is not None
    assert again.local.read(5) == photos.read(5)


def test_samples_stored_before_they_are_needed_are_released(
    server: RangeServer, photos: ImageFolder, tmp_path: Path
) -> None:
    """They are removed from memory, where they would otherwise stay forever."""
    source = open_remote(server, photos, local_cache=tmp_path / "copy", bytes_ahead=1)
    everything = np.arange(NUM_PHOTOS)
    source.announce(everything)
    assert source.local is not None
    deadline = time.monotonic() + 60
    while not source.local.has(everything).all() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not source.has_room
    source.locate(everything, np.zeros(NUM_PHOTOS, ROW))
    assert source.has_room
    assert server.requests["all"] < 2 * NUM_PHOTOS


def test_urls_are_distinguished_from_paths_and_lose_their_secrets() -> None:
    assert is_url(b"s3://bucket/a.tar")
    assert not is_url(b"/data/a.tar")
    assert not is_url(b"file:///data/a.tar")


# ---- tars by URL ----


def test_options_of_remote_data_are_refused_for_files(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w"):
        pass
    with pytest.raises(ValueError, match="requests can only be used for data at URLs"):
        open_source(tmp_path / "a.tar", requests=3)
    with pytest.raises(
        ValueError, match=r"^'https://host/photos/a\.zip' is not a source \(the URL of a folder must end"
    ):
        open_source("https://host/photos/a.zip?signature=secret")
    with pytest.raises(ValueError, match="HTTP cannot list"):
        open_source("https://host/photos/*.tar")
    with pytest.raises(ValueError, match="requests must be at least 1"):
        open_source("https://host/photos/a.tar", requests=0)


def test_a_closed_loader_stops_fetching(server: RangeServer, photos: ImageFolder) -> None:
    server.delay_s = 0.05
    source = open_remote(server, photos, requests=1)
    with open_loader(source, workers=0, decoder="simplejpeg") as loader:
        next(iter(loader))
    time.sleep(0.2)  # running requests finish
    before = server.requests["all"]
    time.sleep(0.3)
    assert server.requests["all"] == before


def test_only_headers_and_labels_of_tars_are_fetched_to_index_them(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(400_000)
    for number in range(3):
        files = [(f"{i}.{s}", b"%d" % i if s == "cls" else content) for i in range(9) for s in ("cls", "jpg")]
        write_tar(tmp_path / f"{number}.tar", files)
    with serve_ranges(tmp_path) as server:
        source = open_source(f"{server.url}/{{0..2}}.tar")
        assert source.labels(np.arange(27)).tolist() == 3 * list(range(9))
        assert server.num_bytes < 30 * len(content) / 50
        assert server.requests["all"] <= 27 + 3 * 3
