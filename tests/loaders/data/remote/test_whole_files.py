"""Caches by URL: copied whole once, and again only after they were replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from photo_folder import write_folder
from range_server import CUT, RangeServer, serve_ranges

from penstock.loaders import open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.remote import whole_files
from penstock.loaders.data.requests import request_retries
from penstock.pipelines.errors import LoaderError

NUM_PHOTOS = 9


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(whole_files, "_PART_BYTES", 5000)
    source = open_source(write_folder(tmp_path / "photos", NUM_PHOTOS))
    build_cache(source, os.fsencode(tmp_path / "data.h5"))
    build_cache(source, os.fsencode(tmp_path / "set"), shards=2)
    with serve_ranges(tmp_path) as served:
        yield served


@pytest.mark.parametrize("name", ["data.h5", "set", "set/"])
def test_a_cache_is_copied_once(server: RangeServer, tmp_path: Path, name: str) -> None:
    url, copy = f"{server.url}/{name}", tmp_path / "copy"
    with pytest.raises(LoaderError, match=r"E-MISUSE.*cannot be read directly from a URL: fix=pass local_cache=FOLDER"):
        open_source(url)
    local: Any = open_source(tmp_path / name)
    source: Any = open_source(url, local_cache=copy)
    assert [source.read(index) for index in range(NUM_PHOTOS)] == [local.read(index) for index in range(NUM_PHOTOS)]
    server.fault = lambda path, number: 0
    fetched = server.num_bytes
    assert open_source(url, local_cache=copy).fingerprint == local.fingerprint
    assert server.num_bytes == fetched
    server.etags = {f"/{name}": "another", "/set/penstock-cache.json": "another"}
    open_source(url, local_cache=copy)
    assert server.num_bytes == 2 * fetched
    assert not list(copy.rglob("*.tmp.*"))


def test_a_copy_that_fails_leaves_nothing(server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.05)
    url, copy = f"{server.url}/data.h5", tmp_path / "copy"
    with pytest.raises(LoaderError, match=r"E-NOSPC.*more than local_bytes=1,000: fix=pass local_bytes="):
        open_source(url, local_cache=copy, local_bytes=1000)
    server.fault = lambda path, number: CUT if number % 4 == 3 else 0
    open_source(url, local_cache=copy / "a")
    server.fault = lambda path, number: 500 if number > 60 else 0
    server.requests["all"] = 57
    with pytest.raises(LoaderError, match="E-READ"):
        open_source(url, local_cache=copy / "b", requests=1, retry_s=0.5)
    assert [path.name for path in (copy / "b").rglob("*") if path.is_file() and path.suffix != ".lock"] == []

    def replace(path: str, number: int) -> int:
        server.etags["/data.h5"] = str(number // 3)
        return 0

    server.fault = replace
    with pytest.raises(LoaderError, match=r"E-CHANGED.*replaced"):
        open_source(url, local_cache=copy / "c")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LoaderError, match=r"E-NOSPC.*another local_cache folder"):
        open_source(url, local_cache=tmp_path / "file")
