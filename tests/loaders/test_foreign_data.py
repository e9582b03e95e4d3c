"""What is said of data that are not read: the nearest thing that works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import penstock_here

from penstock.loaders import LoaderError, create_loader, open_source


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("a.tfrecord", "to tars as WebDataset has them"),
        ("a.beton", "pass the data that it was written from"),
        ("a.lmdb", r"for penstock\.loaders\.DataLoader"),
        ("A.ZIP", "unpack it, and pass the folder"),
        ("a.npz", "load it, and pass \\(images uint8"),
        ("a.txt", r"a table \(\.csv\)"),
        ("a.json", r"write it as \.jsonl"),
        ("a.ppm", "convert it to JPEG"),
    ],
)
def test_a_file_of_another_format_names_a_way(tmp_path: Path, name: str, cure: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ValueError, match=cure):
        create_loader(tmp_path / name)


def test_a_folder_of_another_format_names_a_way(tmp_path: Path) -> None:
    for name in ("index.json", "shard.00000.mds", "readme.txt"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(LoaderError, match=r"no images in this folder.*DataLoader") as caught:
        open_source(tmp_path)
    assert caught.value.code == "E-NODATA"
    (tmp_path / "shard.00000.mds").unlink()
    with pytest.raises(LoaderError, match="a folder that contains JPEG"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("photos/cta", r"perhaps 'photos/cat'"),
        ("photo", r"perhaps 'photos'"),
        ("imagenet", "the current folder is"),
        ("absent/train", "'absent' is not there either"),
        ("~/photos", "os.path.expanduser"),
        ("s3:/bucket/a.tar", "'s3://bucket/a.tar'"),
        ("host.org:8000/a.tar", "write its scheme: 'https://host.org:8000/a.tar'"),
        ("", "the path is empty"),
        ("*.tarr", r"check the pattern"),
        ("htps://host/a.tar", "check the scheme"),
    ],
)
def test_a_slip_in_a_path_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, fix: str) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoaderError, match=fix):
        open_source(path)


def test_an_object_that_is_nearly_data_says_what_is_missing() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    for spec, cure in (([image] * 3, r"np\.stack"), (image, "a pair"), ([], "the list is empty")):
        with pytest.raises(ValueError, match=cure):
            open_source(spec)


def test_an_empty_path_is_not_the_current_folder() -> None:
    done = penstock_here("iterate", "", "--dump", "dump")
    assert done.returncode == 2
    assert "the path is empty" in " ".join(done.stderr.replace("│", " ").split())
