"""A folder of photos that the tests of a module share."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many as the module says in NUM_PHOTOS, 48 by default, in three classes."""
    return write_folder(tmp_path_factory.mktemp("photos"), getattr(request.module, "NUM_PHOTOS", 48))
