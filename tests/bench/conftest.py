"""The folder of photos for most tests of the benchmark, and measurements that do not wait for an idle machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NUM_PHOTOS of the module, 40 by default, in three classes."""
    return write_folder(tmp_path_factory.mktemp("photos"), getattr(request.module, "NUM_PHOTOS", 40))


@pytest.fixture(autouse=True)
def no_wait_for_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure immediately: no test depends on speed."""
    monkeypatch.setattr("penstock.bench.run.rounds.wait_until_idle", lambda: None)
