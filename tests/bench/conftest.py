"""The folder of photos that most tests of the benchmark need."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small photos of three classes; a module that needs others has a fixture of its own."""
    return write_folder(tmp_path_factory.mktemp("photos"), 40)
