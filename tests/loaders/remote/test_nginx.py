"""Data on nginx: while it is slow, killed and started again, without ranges, and as its files are replaced."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from nginx_server import NGINX, NO_NGINX, serve_by_nginx
from processes import eventually
from remote_photos import open_at, open_loader, write_containers
from served_rows import Row, serve

from penstock.loaders import LoaderError
from penstock.loaders.remote import object_store
from penstock.loaders.sources.image_folder import ImageFolder

NUM_PHOTOS = 37
pytestmark = pytest.mark.skipif(NGINX is None, reason=NO_NGINX)


@pytest.fixture
def root(tmp_path: Path, photos: ImageFolder) -> Path:
    folder = tmp_path / "www"
    folder.mkdir()
    write_containers(folder, photos)
    return folder


@pytest.mark.parametrize("options", ["etag off;", "limit_rate 20k;"])
def test_the_stream_is_that_of_local_files(
    root: Path, photos: ImageFolder, expected: list[Row], tmp_path: Path, options: str
) -> None:
    with serve_by_nginx(root, tmp_path / "nginx", options=options) as url, open_loader(open_at(url, photos, {})) as one:
        assert serve(one) + serve(one) == expected


def test_a_server_that_is_stopped_and_started_is_waited_for(
    root: Path, photos: ImageFolder, expected: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RETRY_DELAYS_S", (0.3,) * 60)
    with ExitStack() as first, ExitStack() as second:
        url = first.enter_context(serve_by_nginx(root, tmp_path / "nginx"))
        source = open_at(url, photos, {"bytes_ahead": 1})
        with open_loader(source, workers=0) as loader:
            assert serve(loader, 2) == expected[:12]
            first.close()

            def come_back() -> None:
                eventually(lambda: source.store.retries > 0)
                port = int(url.rpartition(":")[2])
                second.enter_context(serve_by_nginx(root, tmp_path / "again", port=port))

            thread = threading.Thread(target=come_back)
            thread.start()
            rows = serve(loader)
            thread.join()
    assert rows == expected[len(expected) // 2 :]  # a loop that was left ends its epoch
    assert source.store.retries > 0


def test_a_server_without_ranges_is_refused(
    root: Path, photos: ImageFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_RETRY_DELAYS_S", ())
    with serve_by_nginx(root, tmp_path / "nginx", options="max_ranges 0;") as url:
        with pytest.raises(LoaderError, match="answers with the whole object") as caught:
            open_at(url, photos, {}).read(0)
        assert caught.value.code == "E-READ"


def test_a_file_that_is_replaced_in_mid_epoch_is_refused(root: Path, photos: ImageFolder, tmp_path: Path) -> None:
    with serve_by_nginx(root, tmp_path / "nginx") as url:
        source = open_at(url, photos, {"bytes_ahead": 1})
        with open_loader(source, workers=0) as loader:
            serve(loader, 2)
            os.utime(root / "1.bin", (1e9, 1e9))
            with pytest.raises(LoaderError, match="replaced since it was indexed") as caught:
                serve(loader)
    assert caught.value.code == "E-CHANGED"
