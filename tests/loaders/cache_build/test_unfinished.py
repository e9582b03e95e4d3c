"""The folder of an unfinished cache: what a failure to open it leaves open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.loaders.cache_build import unfinished


def test_a_folder_that_cannot_be_opened_keeps_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that catches the error of a full disk, and builds elsewhere, must not lose a descriptor each time."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(unfinished, "write_all", full)
    path = os.fsencode(tmp_path / "cache.tmp.x")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no space left"):
        unfinished.BuildFolder(path, "key")
    assert len(os.listdir("/proc/self/fd")) == len(before)
