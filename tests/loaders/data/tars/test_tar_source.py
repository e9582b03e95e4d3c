"""Tars as a source: order, the saved index and changes that make it stale, folders of tars, refusals."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import penstock_here
from photo_folder import photo
from tar_files import BLOCK, END, entry, header, pack_folder, refusal_of, write_tar

from penstock.loaders import create_loader, open_source
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.files.left_out import NO_IMAGE, NO_SAMPLES, OTHER_IMAGE
from penstock.loaders.data.tars import tar_index, tar_join, tar_scan, tar_source
from penstock.loaders.data.tars.tar_headers import AFTER_END, TarReader
from penstock.loaders.data.tars.tar_source import is_tar_folder
from penstock.pipelines.errors import LoaderError


def shard(path: Path, first: int, count: int) -> Path:
    """Write a tar of `count` photos, labelled with their numbers."""
    files = [
        (f"{i:04d}.{s}", photo(i) if s == "jpg" else b"%d" % i)
        for i in range(first, first + count)
        for s in ("cls", "jpg")
    ]
    return write_tar(path, files)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder of three tars with four photos each, not written in the order of their names."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for number in (2, 0, 1):
        shard(folder / f"train-{number:04d}.tar", 4 * number, 4)
    return folder


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of tars that were scanned, one per scan."""
    found: list[int] = []
    plain = tar_source.index_tars
    monkeypatch.setattr(
        tar_source, "index_tars", lambda paths, *about: (found.append(len(paths)), plain(paths, *about))[1]
    )
    return found


def all_labels(source: Any) -> list[int]:
    return source.labels(np.arange(len(source))).tolist()


# ---- opening ----


def test_a_folder_is_read_as_its_tars_sorted_by_name(shards: Path) -> None:
    one = open_source(shards / "train-0001.tar")
    assert all_labels(one) == [4, 5, 6, 7]
    assert one.describe().endswith(" MB in 1 tar file")
    source = open_source(shards)
    assert isinstance(source, IndexedSource)
    assert all_labels(source) == list(range(12))
    assert source.describe() == f"12 images, 12 classes, {source.num_bytes / 1e6:,.1f} MB in 3 tar files"
    assert source.path(5) == os.fsencode(shards / "train-0001.tar") + b":0005.jpg"
    assert source.name(5) == b"0005.jpg"


@pytest.mark.parametrize(
    ("others", "is_tars"),
    [
        ([], True),
        (["README.md", "x.json", "a.tar.idx", ".hidden.jpg", ".git/"], True),
        (["photo.jpg"], False),
        (["photo.JPEG"], False),
        (["class/"], False),
        (["class.tar/"], False),
    ],
)
def test_a_folder_of_tars_must_not_contain_images_or_folders(shards: Path, others: list[str], is_tars: bool) -> None:
    for name in others:
        (shards / name).mkdir() if name.endswith("/") else (shards / name).write_bytes(photo(0))
    assert is_tar_folder(os.fsencode(shards)) == is_tars
    if is_tars:
        assert isinstance(open_source(shards), IndexedSource)


def test_a_tar_with_zeros_in_its_second_half_warns(shards: Path) -> None:
    path = shards / "train-0001.tar"
    write_tar(path, [(f"{number}.{s}", photo(number).ljust(9000)) for number in range(40) for s in ("cls", "jpg")])
    data = path.read_bytes()
    header_of_20 = data.index(b"20.cls")
    path.write_bytes(data[:header_of_20] + bytes(len(data) - header_of_20))
    for _ in range(2):
        with pytest.warns(
            UserWarning,
            match=r"1 of 3 tars \('.*/train-0001.tar'\): more zeros after the end .* part of it may be lost",
        ):
            assert len(open_source(shards, label="shard")) == 28


def test_other_files_next_to_tars_warn(shards: Path) -> None:
    for name in ("train-0003.tar.gz", "train-0004.tar.part", "train-0005", "README.md", "train-0000.tar.idx", ".x.tar"):
        (shards / name).write_bytes(b"")
    words = (
        f"'{shards}': left out: 2 files with an unknown suffix ('train-0003.tar.gz'), "
        "1 file without a suffix ('train-0005'); decompress tars and give them the suffix .tar"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(words)}$"):
        assert len(open_source(shards)) == 12


def test_links_in_a_tar_warn(tmp_path: Path) -> None:
    links = entry(b"1.png", kind=b"2", linkname=b"/elsewhere/1.png") + entry(b"2.png", kind=b"1", linkname=b"gone.png")
    (tmp_path / "x.tar").write_bytes(entry(b"0.png", photo(0)) + links + END)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"1 symbolic link \('1.png'\), 1 broken link \('2.png'\); write"):
            assert len(open_source(tmp_path / "x.tar")) == 1


def test_a_folder_of_images_is_checked_for_tars_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_tar_folder(os.fsencode(tmp_path / "absent"))
    (tmp_path / "notes.txt").write_bytes(b"")
    assert not any(is_tar_folder(os.fsencode(path)) for path in (tmp_path, tmp_path / "notes.txt"))
    (tmp_path / "notes.txt").rename(tmp_path / "0.jpg")
    (tmp_path / "1.jpg").touch()
    seen = []
    plain = os.scandir

    @contextlib.contextmanager
    def noting(path: bytes) -> Iterator[Any]:
        with plain(path) as entries:
            yield (seen.append(found) or found for found in entries)

    monkeypatch.setattr(os, "scandir", noting)
    assert not is_tar_folder(os.fsencode(tmp_path))
    assert len(seen) == 1


def test_skipped_members_are_counted(tmp_path: Path) -> None:
    write_tar(tmp_path / "1.tar", [("a.txt", b""), ("b.csv", b"1"), ("README", b"")])
    write_tar(tmp_path / "2.tar", [("c/a.jpg", photo(0)), ("c/a.png", b""), ("c/a.seg.png", b""), ("c/.b.jpg", b"")])
    (tmp_path / "3.tar").write_bytes(entry(b"d/", kind=b"5") + entry(b"d/a.png", photo(1)) + END + entry(b"x.jpg"))
    write_tar(tmp_path / "4.tar", [("c/lost.cls", b"0"), ("c/8.HEIC", b""), ("c/9.JPG_large", b""), ("c/2", b"")])
    words = (
        "left out: 1 file without a suffix ('4.tar:c/2'), 2 samples without an image ('4.tar:c/8.HEIC'), "
        f"2 other images of samples ('2.tar:c/a.png'), 2 tars without samples ('{tmp_path}/1.tar'); "
    )
    for _ in range(2):  # scanned, then from the saved index
        with (
            pytest.warns(UserWarning, match=rf"1 of 4 tars \('{tmp_path}/3.tar'\): {AFTER_END}"),
            pytest.warns(UserWarning, match=re.escape(words)),
        ):
            source = open_source(tmp_path, label="folder")
    assert len(source) == 2
    assert source.skipped == {
        NO_SAMPLES: 2,
        NO_IMAGE: 2,
        OTHER_IMAGE: 2,
        AFTER_END: 1,
        "other suffix": 4,
        "no suffix": 1,
        "hidden": 1,
        "folder": 1,
    }
    assert f"2 {NO_SAMPLES}" in source.describe()


def test_the_first_refused_tar_is_named(shards: Path) -> None:
    for number in (1, 2):
        path = shards / f"train-{number:04d}.tar"
        os.truncate(path, path.stat().st_size // 2)
    for _ in range(3):
        error = refusal_of(shards)
        assert (error.code, error.path) == ("E-TRUNC", os.fsencode(shards / "train-0001.tar"))


def test_the_image_option_chooses_the_member_served(tmp_path: Path) -> None:
    files = [(f"{i}.{suffix}", photo(i)) for i in range(2) for suffix in ("mask.PNG", "jpg", "webp")]
    path = write_tar(tmp_path / "x.tar", [*files, ("2.webp", photo(2))])
    with pytest.warns(UserWarning, match=r"left out: 4 other images of samples \('0.mask.PNG'\); set .* with image="):
        open_source(path)
    for image, names in (
        ("jpg;webp", [b"0.jpg", b"1.jpg", b"2.webp"]),
        ("mask.png", [b"0.mask.PNG", b"1.mask.PNG"]),
        (".WEBP", [b"0.webp", b"1.webp", b"2.webp"]),
        ("png; mask.png;webp", [b"0.mask.PNG", b"1.mask.PNG", b"2.webp"]),
    ):
        lost = pytest.warns(UserWarning, match=r"left out: 1 sample without an image \('2.webp'\)")
        with lost if image == "mask.png" else contextlib.nullcontext():
            source = open_source(path, image=image)
        assert [source.name(i) for i in range(len(source))] == names  # type: ignore[attr-defined]
    assert refusal_of(path, image="png").code == "E-NODATA"


def test_create_loader_passes_the_options_on(shards: Path) -> None:
    options = {"image": "jpg", "label": "cls", "classes": [f"c{i}" for i in range(12)], "rescan": True}
    with create_loader(shards, batch_size=4, workers=0, shuffle=False, **options) as loader:
        assert sorted(label for _, labels in loader for label in labels.tolist()) == list(range(12))
    with pytest.raises(ValueError, match="no option allow_empty: it accepts image, label"):
        open_source(shards, allow_empty=True)


def test_the_commands_accept_tars(shards: Path) -> None:
    options = ("--size", 32, "--batch-size", 4, "--workers", 0, "--epochs", 1)
    one, other = (penstock_here("iterate", path, *options) for path in (shards, shards / "*.tar"))
    assert (one.returncode, one.stdout.count("\n"), one.stdout) == (0, 3, other.stdout)
    looked = penstock_here("doctor", shards / "train-0000.tar", "--size", 32)
    assert "4 images, 4 classes" in looked.stdout
    assert "in 1 tar file" in looked.stdout


# ---- the saved index ----


def test_the_index_is_used_again_while_the_tars_are_unchanged(shards: Path, scans: list[int]) -> None:
    for _ in range(3):
        open_source(shards)
    open_source(str(shards / "*.tar"))
    assert scans == [3]
    open_source(shards, rescan=True)
    assert scans == [3, 3]
    link = shards.with_name("link")
    link.symlink_to(shards)
    assert open_source(link).path(0) == os.fsencode(shards / "train-0000.tar") + b":0000.jpg"  # both share one index
    assert scans == [3, 3]


@pytest.mark.parametrize(("grows", "decoder"), [(True, "native"), (False, "simplejpeg")])
def test_a_tar_that_changes_during_an_epoch_is_reported_in_one_line_and_indexed_again(
    shards: Path, grows: bool, decoder: str
) -> None:
    path = shards / "train-0001.tar"
    with create_loader(shards, batch_size=4, workers=0, shuffle=False, decoder=decoder) as loader:
        stream = iter(loader)
        next(stream)
        if grows:
            shard(path, 4, 5)
        else:
            os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(LoaderError, match=r"^LoaderError\[E-CHANGED\] sample=4 [^\n]*$"):
            next(stream)
    if grows:
        assert len(open_source(shards)) == 13
    else:
        assert refusal_of(shards).code == "E-TRUNC"


def test_options_have_separate_indexes(shards: Path, scans: list[int], tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("".join(f"{i:04d},{i % 2}\n" for i in range(12)))
    for options, labels in (
        ({}, list(range(12))),
        ({"label": table}, [0, 1] * 6),
        ({"label": {f"{i:04d}": i // 6 for i in range(12)}}, [0] * 6 + [1] * 6),
        ({"label": "shard"}, [0] * 4 + [1] * 4 + [2] * 4),
    ):
        assert all_labels(open_source(shards, **options)) == labels
        assert all_labels(open_source(shards, **options)) == labels
    assert len(scans) == 4
    table.write_text("".join(f"{i:04d},{i % 3}\n" for i in range(12)))
    assert all_labels(open_source(shards, label=table)) == [0, 1, 2] * 4
    assert len(scans) == 5


def test_a_source_is_refreshed_with_its_options(shards: Path, scans: list[int]) -> None:
    table = {f"{i:04d}": i % 2 for i in range(13)}
    source = open_source(shards, label=table)
    shard(shards / "train-0002.tar", 8, 5)
    assert all_labels(source.refreshed()) == [0, 1] * 6 + [0]  # type: ignore[attr-defined]
    assert len(scans) == 2


def test_a_pickled_source_is_small(shards: Path) -> None:
    source = open_source(shards, label={f"{i:04d}": i for i in range(10_000)})
    sent = pickle.dumps(source)
    assert len(sent) < 1000
    assert pickle.loads(sent).read(7) == photo(7)


def test_a_tar_that_is_written_to_while_it_is_indexed_is_refused(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shards / "train-0000.tar"

    def grow(*arguments: Any) -> None:
        with path.open("ab") as file:
            file.write(bytes(BLOCK))

    read = TarReader.read
    monkeypatch.setattr(TarReader, "read", lambda *a: (grow(), read(*a))[1])
    error = refusal_of(path)
    assert (error.code, error.path) == ("E-CHANGED", os.fsencode(path))


# ---- reading ----


def test_a_member_at_an_offset_above_8_gib_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        file.write(header(b"c/big.txt", magic=b"ustar  \0", size_field=b"\x80" + (9 << 30).to_bytes(11, "big")))
        file.seek(9 << 30, os.SEEK_CUR)
        file.write(entry(b"c/a.jpg", photo(1)) + entry(b"d/b.jpg", photo(2)) + END)
    assert [open_source(path).read(i) for i in (0, 1)] == [photo(1), photo(2)]
    with create_loader(path, batch_size=2, workers=1, decoder="native", shuffle=False) as loader:
        assert [labels.tolist() for _, labels in loader] == [[0, 1]]


def test_several_tars_are_indexed_concurrently(tmp_path: Path) -> None:
    """There are more tars than threads; the index equals that of a folder of the same photos."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(120):
        (folder / f"{number:04d}.jpg").write_bytes(photo(number % 7))
    names = sorted(path.name for path in folder.iterdir())
    (tmp_path / "tars").mkdir()
    for number in range(60):
        pack_folder(tmp_path / "tars" / f"{number:02d}.tar", folder, names[2 * number : 2 * number + 2])
    source, files = open_source(tmp_path / "tars"), ImageFolder(folder)
    assert [source.read(i) for i in range(120)] == [files.read(i) for i in range(120)]


def test_a_long_scan_is_shown(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress: list[str] = []
    monkeypatch.setattr(tar_index.ProgressBar, "show", lambda bar, done, total, what: progress.append(what))
    read = TarReader.read
    monkeypatch.setattr(tar_scan, "_LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(TarReader, "read", lambda *a: (time.sleep(0.02), read(*a))[1])
    assert len(open_source(shards)) == 12
    assert set(progress) == {"indexing 3 tar files"}


def test_an_interrupted_scan_ends(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the main thread, which waits for the threads that read."""
    progress, looked = [], []

    def interrupt(*_: Any, **__: Any) -> None:
        progress.append(1)
        raise KeyboardInterrupt

    def look(*arguments: Any) -> Any:
        looked.append(1)
        time.sleep(0.2)
        return read(*arguments)

    read = TarReader.read
    monkeypatch.setattr(tar_join, "REPORT_INTERVAL", 1)
    monkeypatch.setattr(TarReader, "read", look)
    monkeypatch.setattr(tar_index.ProgressBar, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_source(shards)
    assert progress == [1]
    assert 1 <= len(looked) < 12  # samples
