"""Sizes and times of many files: requested order, missing files, failing storage."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from folder_trees import plant

from penstock.loaders.data.samples import file_stats
from penstock.loaders.data.samples.file_stats import stat_files
from penstock.loaders.data.samples.version import MISSING
from penstock.loaders.system import retries
from penstock.pipelines.errors import LoaderError


def test_many_files_keep_their_order(tmp_path: Path) -> None:
    count = 3 * file_stats.THREADS
    plant(tmp_path, {f"{number}": b"x" * number for number in range(count)})
    for number in range(count):
        os.utime(tmp_path / f"{number}", ns=(0, number))
    chunks = [[b"%d" % number] for number in range(count)]
    progress: list[int] = []
    sizes, times, _ = stat_files(os.fsencode(tmp_path) + b"/", iter(chunks), progress.append)
    assert sizes.tolist() == times.tolist() == list(range(count))
    assert progress == list(range(1, count + 1))


def test_unreadable_files_are_missing(tmp_path: Path) -> None:
    plant(tmp_path, ["a", "folder/"])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    names = [b"a", b"none", b"folder", b"pipe", b"loop", b"a/b", b"x" * 300]
    sizes, times, _ = stat_files(os.fsencode(tmp_path) + b"/", [names])
    assert sizes.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert [time == MISSING.number for time in times] == [False] + [True] * 6


@pytest.mark.parametrize("failures", [1, 99])
def test_failing_storage_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    plant(tmp_path, ["a"])
    left, real = [failures], os.stat

    def failing(path: bytes) -> os.stat_result:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EIO, "Input/output error", path)
        return real(path)

    monkeypatch.setattr(os, "stat", failing)
    monkeypatch.setattr(retries, "RETRY_DELAYS_S", (0, 0))
    prefix = os.fsencode(tmp_path) + b"/"
    if failures == 1:
        assert stat_files(prefix, [[b"a"]])[0].tolist() == [1]
    else:
        with pytest.raises(LoaderError, match=r"E-READ.*/a'"):
            stat_files(prefix, [[b"a"]])
