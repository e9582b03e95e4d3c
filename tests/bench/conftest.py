"""The folder of photos that most tests of the benchmark need, and measurements that do not wait for quiet."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small photos of three classes; a module that needs others has a fixture of its own."""
    return write_folder(tmp_path_factory.mktemp("photos"), 40)


@pytest.fixture(autouse=True)
def no_wait_for_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure at once: how fast something is decides no test."""
    monkeypatch.setattr("penstock.bench.run.rounds.wait_until_idle", lambda: None)
