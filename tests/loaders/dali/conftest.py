"""A folder of photos that the tests of the DALI backend share."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos"), 48)
