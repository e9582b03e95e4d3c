"""Folders, lists and tables of images by URL: listing, lookups, changes and faults."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folder_trees import plant
from range_server import RangeServer, s3_environment, serve_ranges

from penstock.loaders import open_source
from penstock.loaders.data.remote import clients
from penstock.loaders.data.requests import request_retries
from penstock.loaders.front.open_source import split_options
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.rows import ELSEWHERE, ENCODED, ROW

FILES = ["b/3.jpg", "b/sub/1.JPG", "b/x.txt", "b/.hidden/5.jpg", "ä/a b.jpg", "ä/a+#?.png", ".c/4.jpg"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server with FILES in the folder `data`, which is also a bucket."""
    for name in FILES:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    clients.open_client.cache_clear()
    monkeypatch.setattr(request_retries, "_LONGEST_PAUSE_S", 0.01)
    with serve_ranges(tmp_path) as served:
        for name, value in s3_environment(served.url).items():
            monkeypatch.setenv(name, value)
        yield served


def test_a_folder_by_url_equals_the_local_folder(server: RangeServer) -> None:
    (server.root / "data/stray.jpg").write_bytes(b"of no class")
    with pytest.warns(
        UserWarning, match="left out"
    ):  # also the hidden folder, which torchvision's ImageFolder would read
        local: Any = open_source(server.root / "data")
    for url in ("s3://data", "s3://data/"):
        with pytest.warns(
            UserWarning, match=r"^'s3://data': left out: 1 image next to class folders .'stray.jpg'.; move them"
        ):
            source: Any = open_source(url)
        assert source.fingerprint == local.fingerprint
        assert source.classes == local.classes == (b"b", "ä".encode())
        names = [local.path(index).removeprefix(local.root + b"/") for index in range(4)]
        assert [source.name(index) for index in range(4)] == names
        assert [source.read(index) for index in range(4)] == names
        assert source.skipped == {"hidden": 2, "other suffix": 1, "next to class folders": 1}
    assert server.requests["all"] == 2 * (4 + 1 + 1 + 2 + 4)  # four name lookups, two of the root, classes, images


def test_files_left_out_of_a_folder_by_url_are_reported(server: RangeServer) -> None:
    for name in ("b/6.HEIC", "b/7.jxl", "b/8.JPG_large", "b/9"):
        (server.root / "data" / name).write_bytes(b"left out")
    words = (
        "'s3://data': left out: 2 images of a format that is not read ('b/6.HEIC'), 1 file with an unknown suffix "
        "('b/8.JPG_large'), 1 file without a suffix ('b/9'); convert them to JPEG or PNG; give images the suffix"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(words)}"):
        assert len(open_source("s3://data")) == 4


def test_parts_of_the_data_by_url_warn(server: RangeServer) -> None:
    plant(server.root / "data/sets", ["train/1.jpg", "val/2.jpg"])
    with pytest.warns(
        UserWarning, match="^'s3://data/sets': its classes are 'train' and 'val': pass the folder of one"
    ):
        open_source("s3://data/sets")


def test_a_folder_is_listed_again(server: RangeServer) -> None:
    source: Any = open_source("s3://data")
    before = server.requests["all"]
    assert source.refreshed() is source
    assert server.requests["all"] - before == 3  # only listings, no requests per image
    (server.root / "data/b/9.png").write_bytes(b"new")
    again = source.refreshed()
    assert [again.path(1), len(again)] == [b"s3://data/b/9.png", 5]
    os.truncate(server.root / "data/b/9.png", 1)
    assert again.refreshed().content != again.content


def test_folders_without_images_or_listings_are_refused(server: RangeServer) -> None:
    for name in ("b/3.jpg", "b/sub/1.JPG"):
        (server.root / "data" / name).unlink()
    with pytest.raises(LoaderError, match=r"E-EMPTYCLASS.* path='s3://data/b' cause=no image in this class folder"):
        open_source("s3://data")
    with pytest.raises(
        LoaderError, match=r"E-NODATA.*no images in this folder, skipped: 1 hidden \('.hidden'\), 1 other"
    ):
        open_source("s3://data/b/")
    with pytest.raises(ValueError, match="HTTP cannot list files"):
        open_source(f"{server.url}/data/")


@pytest.mark.parametrize("is_remote", [True, False])
def test_a_pattern_is_expanded_again(server: RangeServer, is_remote: bool) -> None:
    """New and deleted files that match are noticed; workers do not check."""
    (server.root / "data/b/.hidden/5.jpg").unlink()
    source: Any = open_source("s3://data/b/*.jpg" if is_remote else server.root / "data/b/*.jpg")
    assert source.refreshed().content == source.content
    (server.root / "data/b/new.jpg").write_bytes(b"new")
    again = source.refreshed()
    assert [os.path.basename(again.path(index)) for index in range(2)] == [b"3.jpg", b"new.jpg"]
    assert pickle.loads(pickle.dumps(again)).read(1) == b"new"
    (server.root / "data/b/new.jpg").unlink()
    assert len(again.refreshed()) == 1


def test_missing_and_empty_files_are_left_to_python(server: RangeServer) -> None:
    urls = [f"{server.url}/data/{name}" for name in ("b/3.jpg", "b/none.jpg", "b/empty.jpg")]
    (server.root / "data/b/empty.jpg").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"1 of 3 files do not exist, the first is .*none\.jpg"):
        source: Any = open_source(list(zip(urls, [0, 1, 0], strict=True)))
    assert source.read(2) == b""
    rows = np.zeros(3, ROW)
    source.locate(np.arange(3), rows)
    assert rows["kind"].tolist() == [ENCODED, ELSEWHERE, ELSEWHERE]


def test_a_table_is_looked_up_once(server: RangeServer) -> None:
    """The table lies at a URL; its index is saved, and built again for a new table."""
    rows = "".join(f"b/{number}.jpg,{number % 3}\n" for number in range(30))
    table = server.root / "data/train.csv"
    table.write_text("path,label\n" + rows + f"{server.url}/data/b/3.jpg,0\n../data/b/3.jpg,0\n")
    for number in range(30):
        (server.root / f"data/b/{number}.jpg").write_bytes(b"%d" % number)
    source: Any = open_source(f"{server.url}/data/train.csv")
    assert server.requests["all"] == 1 + 2 + 30
    assert source.read(31) == source.read(30) == source.read(3) == b"3"
    assert source.name(7) == b"b/7.jpg"
    before = server.requests["all"]
    again: Any = open_source(f"{server.url}/data/train.csv")
    assert (again.content, server.requests["all"] - before) == (source.content, 1 + 30)
    assert again.refreshed() is again
    table.write_text(table.read_text() + "b/sub/1.JPG,2\n")
    assert len(again.refreshed()) == 33
    table.write_text("path,label\nb/3.jpg,0\n")
    with pytest.raises(ValueError, match="requests can only be used for data at URLs"):
        open_source(table, requests=3)


def test_keys_in_urls_are_used_and_never_shown(server: RangeServer, tmp_path: Path) -> None:
    """A signed URL opens its object; messages, names and pickles contain neither key nor user."""
    requested: list[str] = []
    secret = server.url.replace("://", "://user:geheim@")
    urls = [f"{secret}/data/b/{name}.jpg?key=schluessel/{at}" for at, name in enumerate(["3", "none"])]
    with pytest.warns(UserWarning, match="do not exist") as warned:
        source: Any = open_source([(url, 0) for url in urls])
    server.watch = requested.append
    assert source.read(0) == b"b/3.jpg"
    assert requested == ["/data/b/3.jpg?key=schluessel/0"]
    with pytest.raises(LoaderError) as caught:
        source.read(1)
    texts = [str(caught.value), repr(source.name(0)), repr(source.root), str(warned[0].message), source.describe()]
    (tmp_path / "data/t.csv").write_text("path,label\n,0\n")
    for name in ("t.csv", "none.csv", "none.tar", "none.arrow", "none.parquet", "none.h5", "none/"):
        options = {"local_cache": tmp_path} if name == "none.h5" else {}
        with pytest.raises((LoaderError, ValueError)) as wrong:
            open_source(f"{secret}/data/{name}" + "?key=schluessel" * (name != "none/"), **options)
        texts.append(str(wrong.value))
    texts.append(repr(pickle.dumps(source)))
    assert not [text for text in texts if "geheim" in text or "schluessel" in text]
    resigned: Any = open_source([(url.replace("schluessel", "other"), 0) for url in urls[:1]])
    assert resigned.fingerprint == open_source([(urls[0], 0)]).fingerprint


def test_lists_of_urls_and_paths_are_refused(server: RangeServer) -> None:
    for other in (str(server.root / "data/b/3.jpg"), "s3://data/b/3.jpg"):
        with pytest.raises(LoaderError, match=r"E-FORMAT.*row 2: .* in a list of http://"):
            open_source([(f"{server.url}/data/b/3.jpg", 0), (other, 0)])
    both: Any = open_source([open_source([(f"{server.url}/data/b/3.jpg", 0)]), open_source([("s3://data/b/3.jpg", 0)])])
    assert both.read(0) == both.read(1)


def test_url_options_apply_to_every_kind() -> None:
    names = ("requests", "bytes_ahead", "local_cache", "local_bytes", "retry_s")
    assert json.dumps(split_options(dict.fromkeys(names, 1))[0]) == json.dumps(dict.fromkeys(names, 1))
