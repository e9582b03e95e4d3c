"""The folder of photos for most tests of the benchmark, and measurements that do not wait for an idle machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small photos of three classes; a module that needs others has its own fixture."""
    return write_folder(tmp_path_factory.mktemp("photos"), 40)


@pytest.fixture(autouse=True)
def no_wait_for_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure immediately: no test depends on speed."""
    monkeypatch.setattr("penstock.bench.run.rounds.wait_until_idle", lambda: None)
