"""Several sources as one: classes by name, labels, file locations under several roots, caches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cache_files import pixel_item, write_cache
from photo_folder import photo, write_folder
from tar_files import write_tar

from penstock.loaders import concat, create_loader, open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.files.image_folder import ImageFolder
from penstock.loaders.data.sources.contract import Source, is_cache, is_located
from penstock.loaders.data.sources.data import Data
from penstock.loaders.data.sources.joined import join_name_tables, merge_classes
from penstock.loaders.make.native_rows import native_rows
from penstock.pipelines import imagenet_train
from penstock.pipelines.errors import LoaderError
from penstock.pipelines.native.library import native_library
from penstock.pipelines.native.rows import ELSEWHERE, FILE, MEMORY, NO_NAMES, ROW, Names, Rows


def folder(root: Path, names: list[str], first: int = 0) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(photo(first + number))
    return root


class Own(ImageFolder):
    """A source with its own read()."""

    def read(self, index: int) -> bytes:
        return super().read(index)


def paths_of(rows: Rows, names: Names) -> list[bytes]:
    """The path of each row, as join_path of reading.c makes it."""
    found = []
    for row in rows:
        inside = names.folders[row["folder"] : row["folder"] + row["folder_bytes"]].tobytes()
        name = names.names[row["name"] : row["name"] + row["name_bytes"]].tobytes()
        found.append(names.root + (inside + b"/" if inside else b"") + name)
    return found


@pytest.mark.parametrize(
    ("classes_of_sources", "merged"),
    [
        (["cat dog", "cat dog"], "cat dog"),
        (["dog cat", "dog cat"], "dog cat"),  # equal lists keep their order
        (["cat dog", "bird dog"], "bird cat dog"),
        (["dog", "cat dog"], "cat dog"),
        (["0 1 2", "0 1 2 3 4 5 6 7 8 9 10"], "0 1 2 3 4 5 6 7 8 9 10"),
        (["0 1 10", "2"], "0 1 2 10"),
        (["0 1 10", "2 x"], "0 1 10 2 x"),
    ],
)
def test_classes_are_merged_by_name(classes_of_sources: list[str], merged: str) -> None:
    classes = [tuple(map(str.encode, names.split())) for names in classes_of_sources]
    assert merge_classes(classes) == tuple(map(str.encode, merged.split()))
    assert merge_classes(classes[::-1]) == tuple(map(str.encode, merged.split()))


def test_labels_keep_their_class_names(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", ["cat/1.jpg", "dog/2.jpg", "dog/3.jpg"])
    two = folder(tmp_path / "two", ["ant/1.jpg", "dog/2.jpg"], 10)
    both = concat([one, two])
    assert isinstance(both, Source)
    assert both.classes == (b"ant", b"cat", b"dog")
    assert both.labels(np.arange(5)).tolist() == [1, 2, 2, 0, 2]
    assert both.labels(np.array([4, 0, 3])).tolist() == [2, 1, 0]
    assert [both.read(i) for i in range(5)] == [photo(n) for n in (0, 1, 2, 10, 11)]
    assert both.path(3) == os.fsencode(two / "ant" / "1.jpg")
    assert both.name(4) == b"dog/2.jpg"  # type: ignore[attr-defined]
    assert both.describe().startswith("5 images, 3 classes in 2 sources (3 images")
    digits = concat([(np.zeros((3, 4, 4, 3), np.uint8), [0, 1, 6]), (np.zeros((2, 4, 4, 3), np.uint8), [9, 0])])
    assert digits.labels(np.arange(5)).tolist() == [0, 1, 6, 9, 0]


def test_skipped_counts_are_summed_and_the_fingerprint_depends_on_the_order(tmp_path: Path) -> None:
    one, two = (open_source(folder(tmp_path / name, ["a/1.jpg"], number)) for number, name in enumerate(("one", "two")))
    (tmp_path / "one" / "a" / "x.txt").touch()
    one = open_source(tmp_path / "one", rescan=True)
    assert concat([one, two, one]).skipped == {reason: 2 * count for reason, count in one.skipped.items()} != {}
    found = [concat(sources).fingerprint for sources in ([one, two], [two, one], [one, two, two], [one])]
    assert len(set(found)) == 4
    assert found[3] == one.fingerprint
    with pytest.raises(ValueError, match="at least one source"):
        concat([])


def test_the_native_library_receives_one_table_of_names_for_all_roots(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", ["cat/1.jpg", "dog/2.jpg"])
    flat = folder(tmp_path / "flat", ["7.jpg", "8.jpg"])
    arrays = ArraySource(np.zeros((2, 4, 4, 3), np.uint8), [0, 0], classes=["cat"])

    with pytest.warns(UserWarning, match="1 of 4 joined sources have no labels"):
        both = concat([open_source(one), arrays, open_source(flat), Own(one)])
    assert is_located(both)
    order = np.array([4, 1, 2, 5, 0, 7, 4])
    rows = np.zeros(len(order), ROW)
    rows["sample"] = order
    names = both.locate(order, rows)
    assert rows["sample"].tolist() == order.tolist()
    assert rows["kind"].tolist() == [FILE, FILE, MEMORY, FILE, FILE, ELSEWHERE, FILE]
    files = rows["kind"] == FILE
    found = [os.path.normpath(path) for path in paths_of(rows[files], names)]
    assert found == [both.path(i) for i in order[files].tolist()]
    assert len(names.names) < 50  # of these rows only
    alone = np.array([2, 1, 3])
    assert both.locate(alone, np.zeros(3, ROW)).root == os.fsencode(one) + b"/"  # one folder: its own table


@pytest.mark.skipif(native_library() is None, reason="the native library was not built here")
def test_the_native_library_reads_files_and_caches_of_several_sources_in_one_batch(tmp_path: Path) -> None:
    one, two = write_folder(tmp_path / "one", 9), write_folder(tmp_path / "two", 9, classes=1)
    build_cache(open_source(two), tmp_path / "two.h5", workers=0)
    both = concat([one, two, tmp_path / "two.h5"])
    native = native_rows(both, imagenet_train(16), "auto")
    assert native is not None
    for order in (np.arange(27), np.random.default_rng(1).permutation(27)):
        assert native.takes(order) == 27  # Python handles the missing file
    (one / "class1" / "0004.jpg").unlink()
    assert native.takes(np.arange(27)) == 26


def test_memory_that_rows_point_to_is_kept_alive(tmp_path: Path) -> None:
    files = open_source(folder(tmp_path / "one", ["cat/1.jpg"]))
    rows, memory = [np.zeros(1, ROW) for _ in range(4)], [b"first", b"second"]
    parts = [(part, NO_NAMES._replace(kept=kept)) for part, kept in zip(rows, memory, strict=False)]
    located = [(part, files.locate(np.array([0]), part)) for part in rows[2:]]  # type: ignore[attr-defined]
    for some in (parts, [*parts, located[0]], [*parts, *located]):
        assert [kept for kept in join_name_tables(some).kept if kept] == memory  # type: ignore[attr-defined]


def test_sources_without_locate_are_not_located(tmp_path: Path) -> None:
    own = Own(folder(tmp_path / "one", ["cat/1.jpg"]))
    assert not is_located(concat([own, own]))


def test_joined_caches_are_a_cache_and_mixtures_are_not(tmp_path: Path) -> None:
    pixels = [np.full((30, 40, 3), value, np.uint8) for value in (10, 20, 30)]
    files = [
        write_cache(tmp_path / f"{n}.h5", [pixel_item(pixels[n], orientation=6), pixel_item(pixels[2])])
        for n in range(2)
    ]
    caches = open_source([str(file) for file in files])
    assert isinstance(caches, Data)
    assert is_cache(caches)
    assert [caches.stored_orientation(n) for n in range(4)] == [6, 1, 6, 1]
    assert [int(caches.read(n).max()) for n in range(4)] == [10, 30, 20, 30]  # type: ignore[union-attr]
    with create_loader(files, backend="hdf5", workers=0, batch_size=4, with_index=True) as loader:
        assert sorted(next(iter(loader))[2].tolist()) == [0, 1, 2, 3]
    mixed = concat([caches, open_source(folder(tmp_path / "one", ["cat/1.jpg"]))])
    assert not is_cache(mixed)
    assert (mixed.stored_orientation(2), mixed.stored_orientation(4)) == (6, 0)  # type: ignore[attr-defined]


def test_lists_of_paths_are_opened_and_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (folder(tmp_path / name, ["a/1.jpg"]) for name in ("one", "two"))
    for spec in ([one, two], (str(one), os.fsencode(two)), [open_source(one), two]):
        found = open_source(spec)  # type: ignore[arg-type]
        assert isinstance(found, Data)
        assert [found.path(i) for i in range(2)] == [os.fsencode(root / "a" / "1.jpg") for root in (one, two)]
    assert isinstance(open_source([one]), ImageFolder)
    assert len(open_source([one, two], subset="1:")) == 1
    (two / "b").mkdir()
    with pytest.raises(LoaderError, match="E-EMPTYCLASS"):
        open_source([one, two])
    assert open_source([one, two], allow_empty=True).classes == (b"a", b"b")
    with pytest.raises(LoaderError, match=r"E-NODATA.*absent"):
        open_source([one, tmp_path / "absent"])


def test_a_single_shard_is_refused_as_a_source(tmp_path: Path) -> None:
    build_cache(open_source(write_folder(tmp_path / "photos", 12)), tmp_path / "set", workers=0, shards=2)
    with pytest.raises(ValueError, match="pass the folder of the whole set"):
        open_source(sorted((tmp_path / "set").glob("*.h5")))
    assert len(open_source([tmp_path / "set", tmp_path / "set"])) == 24


def test_a_cache_of_several_folders_serves_their_images(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", ["cat/1.jpg", "dog/2.jpg"])
    two = folder(tmp_path / "two", ["ant/1.jpg", "dog/3.jpg"], 10)
    settings: dict[str, Any] = {"backend": "hdf5", "cache": tmp_path / "all.h5", "workers": 0, "batch_size": 4}
    for _ in range(2):
        with create_loader([one, two], **settings) as loader:
            assert loader.dataset.targets == [1, 2, 0, 2]
            assert sorted(next(loader.batches()).index.tolist()) == [0, 1, 2, 3]
            assert loader.state_dict()["fingerprint"] == concat([one, two]).fingerprint
    cache = open_cache(tmp_path / "all.h5")
    assert [cache.name(i) for i in range(4)] == [b"cat/1.jpg", b"dog/2.jpg", b"ant/1.jpg", b"dog/3.jpg"]
    os.utime(two / "dog" / "3.jpg", ns=(1, 1))
    with pytest.raises(LoaderError, match=r"E-STALE.*modified"):
        create_loader([one, two], **settings)
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the folder of its images"):
        create_loader([one, two], **{**settings, "cache": two / "all.h5"})


def test_parts_of_labelled_tars_detect_new_files_of_their_pattern(tmp_path: Path) -> None:
    """The pattern is expanded again, although the data is labelled and reversed."""

    def add(name: str) -> None:
        files = [(f"{number}.{suffix}", data) for number in range(4) for suffix, data in _sample(number).items()]
        write_tar(tmp_path / name, files)

    add("a.tar")
    part: Any = open_source(tmp_path / "*.tar", label="json:price", subset="::-1")
    assert part.refreshed().targets(np.arange(2)).tolist() == [3.5, 2.5]
    add("b.tar")
    with pytest.raises(LoaderError, match=r"E-CHANGED.*added, removed or changed"):
        part.refreshed()


def _sample(number: int) -> dict[str, bytes]:
    return {"json": b'{"price": %d.5}' % number, "jpg": photo(number)}


class Priced(ImageFolder):
    """A source with float labels."""

    def targets(self, indices: np.ndarray) -> np.ndarray:
        return indices / np.float32(2)

    def labels(self, indices: np.ndarray) -> np.ndarray:
        return np.zeros(len(indices), np.int64)


@pytest.mark.parametrize("subset", [None, "::-1"])
def test_labels_come_from_the_source_next_to_its_cache(tmp_path: Path, subset: str | None) -> None:
    source = Priced(write_folder(tmp_path / "photos", 6))
    settings: dict[str, Any] = {"batch_size": 6, "workers": 0, "subset": subset, "shuffle": False, "with_index": True}
    for _ in range(2):
        with create_loader(source, backend="hdf5", cache=tmp_path / "all.h5", **settings) as loader:
            ((_, labels, index),) = list(loader)
            numbers = index if subset is None else 5 - index
            assert labels.tolist() == (numbers / 2).tolist() == loader.dataset.targets
