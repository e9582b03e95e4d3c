"""ImageFolder: errors of reads, and small pickles that are up to date."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest
from folder_trees import plant, settle

from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.front.open_source import open_source
from penstock.loaders.system import file_read, retries
from penstock.pipelines.errors import LoaderError

NAMES = ["a/1.jpg", "a/2.jpg", "b/3.jpg"]


@pytest.fixture
def source(tmp_path: Path) -> ImageFolder:
    return ImageFolder(settle(plant(tmp_path / "tree", NAMES)))


def error_of(source: ImageFolder, index: int) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        source.read(index)
    assert caught.value.sample == index
    assert caught.value.path == source.path(index)
    return caught.value


class Mirrored(ImageFolder):
    """Read the files from a copy."""

    def path(self, index: int) -> bytes:
        return super().path(index).replace(b"/tree/", b"/copy/")


def test_a_subclass_can_override_where_its_files_are(tmp_path: Path) -> None:
    settle(plant(tmp_path / "copy", dict.fromkeys(NAMES, b"the copy")))
    source = Mirrored(settle(plant(tmp_path / "tree", dict.fromkeys(NAMES, b"original"))))
    for path in (tmp_path / "copy").glob("*/*"):
        os.utime(path, ns=((tmp_path / "tree" / path.parent.name / path.name).stat().st_mtime_ns,) * 2)
    assert [source.read(0), open_source(source, subset=[2, 0]).read(1)] == [b"the copy"] * 2


def test_a_file_of_a_later_century_is_read(tmp_path: Path) -> None:
    """Its mtime in ns needs more than 64 bits."""
    root = plant(tmp_path, NAMES)
    for path in (root / NAMES[1], root / "b"):
        os.utime(path, (12 * 10**9, 12 * 10**9))
    source = ImageFolder(root)
    assert source.read(1) == b"a/2.jpg"
    assert source.refreshed() is not None
    os.utime(root / NAMES[1], (1, 1))
    assert error_of(source, 1).code == "E-CHANGED"


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    root = plant(tmp_path / "tree", {**dict.fromkeys(NAMES, b"a photo"), "b/0.jpg": b""})
    assert ImageFolder(root).read(2) == b""
    with open(root / "b" / "3.jpg", "r+b") as file:
        file.truncate((512 << 20) + 1)  # sparse: takes no disk space
    error = error_of(ImageFolder(root), 3)
    assert error.code == "E-BOMB"
    assert "max_file_bytes=536870913" in error.fix


@pytest.mark.timeout(20)
def test_each_fault_of_a_file_has_its_code(source: ImageFolder) -> None:
    first, _, third = (Path(os.fsdecode(source.path(index))) for index in range(3))
    first.unlink()
    os.mkfifo(first)
    assert error_of(source, 0).code == "E-CHANGED"
    third.unlink()
    third.mkdir()
    assert error_of(source, 2).code == "E-CHANGED"
    third.rmdir()
    third.parent.rmdir()
    third.parent.write_bytes(b"a file where the folder was")
    assert error_of(source, 2).code == "E-MISSING"


def flaky(monkeypatch: pytest.MonkeyPatch, number: int, failures: int) -> list[float]:
    """Make the next `failures` opens fail; return the list of later delays."""
    open_file, left, slept = os.open, [failures], []

    def opener(path: bytes, flags: int) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return open_file(path, flags)

    monkeypatch.setattr(file_read.os, "open", opener)
    monkeypatch.setattr(retries.time, "sleep", slept.append)
    return slept


@pytest.mark.parametrize("number", sorted(retries.TRANSIENT))
def test_transient_failures_are_retried_and_counted(
    source: ImageFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # The first attempt is followed by up to three more, each after a delay in which storage may recover.
    slept = flaky(monkeypatch, number, failures=3)
    assert source.read(1) == b"a/2.jpg"
    assert slept == [0.1, 0.5, 2.0]
    assert source.retries == 3
    flaky(monkeypatch, number, failures=4)
    error = error_of(source, 1)
    assert error.code == "E-READ"
    assert os.strerror(number) in str(error)


def test_lasting_failures_are_not_retried(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, code in [(errno.EACCES, "E-ACCESS"), (errno.ENOENT, "E-MISSING"), (errno.ENXIO, "E-CHANGED")]:
        slept = flaky(monkeypatch, number, failures=1)
        assert error_of(source, 0).code == code
        assert slept == []
    assert source.retries == 0


def test_a_pickle_opens_without_a_scan(source: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(source)
    monkeypatch.setattr("penstock.loaders.data.files.image_folder.FolderScan", None)
    assert pickle.loads(data).read(2) == b"b/3.jpg"


def test_a_later_scan_with_other_files_does_not_affect_running_jobs(source: ImageFolder, tmp_path: Path) -> None:
    """For example, the workers of a job's first validation start hours after the job opened the folder."""
    data = pickle.dumps(source)
    ImageFolder(source.root, rescan=True)  # finds the same files
    assert pickle.loads(data).read(0) == b"a/1.jpg"
    plant(tmp_path / "tree", ["a/0.jpg"])
    assert len(ImageFolder(tmp_path / "tree")) == len(source) + 1
    assert pickle.loads(data).read(0) == b"a/1.jpg"
    os.unlink(source.samples.file.path)
    assert pickle.loads(data).path(0) == source.path(0)
    assert source.read(0) == b"a/1.jpg"


def test_a_pickle_of_an_ended_process_is_stale_after_another_scan(source: ImageFolder, tmp_path: Path) -> None:
    data = pickle.dumps(source)
    del source.samples
    ImageFolder(plant(tmp_path / "tree", ["a/0.jpg"]))
    with pytest.raises(LoaderError, match=r"E-STALE.*replaced it because files have changed"):
        pickle.loads(data)
