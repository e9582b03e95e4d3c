"""Reads of a throttled source wait for their latency, and for a bandwidth that all of them share."""

from __future__ import annotations

from pathlib import Path

import pytest
from photo_folder import write_folder
from throttled_source import ThrottledSource

from penstock.loaders import open_source


def test_a_bandwidth_is_shared_and_a_latency_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("throttled_source.time.sleep", slept.append)
    photos, lock = open_source(write_folder(tmp_path / "photos", 6)), tmp_path / "lock"
    lock.touch()
    source = ThrottledSource(photos, latency_s=0.5, bytes_per_s=1e6, lock=lock)
    assert [source.read(index) for index in range(6)] == [photos.read(index) for index in range(6)]
    assert slept[::2] == [0.5] * 6
    assert slept[1::2] == [len(photos.read(index)) / 1e6 for index in range(6)]  # type: ignore[arg-type]
    assert (len(source), source.path(3), source.classes) == (6, photos.path(3), photos.classes)
    with pytest.raises(ValueError, match="a file to lock"):
        ThrottledSource(photos, bytes_per_s=1e6)
