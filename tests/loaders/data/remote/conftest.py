"""Photos in containers on a server, for the tests of remote data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from photo_folder import write_folder
from range_server import RangeServer
from remote_photos import open_loader, serve_photos
from served_rows import Row, serve

from penstock.loaders.data.files.image_folder import ImageFolder


@pytest.fixture(scope="module")
def photos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """A folder of NUM_PHOTOS photos; each module sets the number."""
    return ImageFolder(write_folder(tmp_path_factory.mktemp("photos"), request.module.NUM_PHOTOS))


@pytest.fixture
def server(tmp_path: Path, photos: ImageFolder) -> Iterator[RangeServer]:
    """A server of containers with concatenated photos."""
    with serve_photos(tmp_path, photos) as served:
        yield served


@pytest.fixture(scope="module")
def expected(photos: ImageFolder) -> list[Row]:
    """Two epochs of the photos in their folder."""
    with open_loader(photos) as loader:
        return serve(loader) + serve(loader)
