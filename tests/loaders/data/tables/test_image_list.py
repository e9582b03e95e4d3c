"""IndexedSource: rows are read in their order, missing files stay and are named, refreshing sees every change."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from folder_trees import plant, settle
from photo_folder import write_folder

from penstock.loaders import create_loader
from penstock.loaders.data.files.indexed_source import IndexedSource
from penstock.loaders.data.sources.contract import LocatedSource, is_located
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError

ROWS = [("b/3.jpg", "y"), ("a/1.jpg", "x"), ("b/3.jpg", "x")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return settle(plant(tmp_path / "tree", ["a/1.jpg", "b/3.jpg"]))


def test_rows_are_read_with_their_labels(tree: Path) -> None:
    source = open_source(ROWS, root=tree)
    assert isinstance(source, IndexedSource)
    assert isinstance(source, LocatedSource)
    assert is_located(source)
    for again in (source, pickle.loads(pickle.dumps(source))):
        assert [again.read(n) for n in range(3)] == [name.encode() for name, _ in ROWS]
        assert again.labels(np.array([2, 0, 1])).tolist() == [0, 1, 0]
        assert again.path(0) == os.fsencode(tree / "b/3.jpg")
        assert again.classes == (b"x", b"y")
        assert again.content == source.content
    assert source.describe() == "3 images, 2 classes, 0.0 MB"
    assert "rows without labels count as one class" in open_source([tree / "a/1.jpg"]).describe()
    with pytest.raises(IndexError):
        source.read(3)


def test_a_missing_file_stays_and_is_named(tree: Path) -> None:
    (tree / "a/1.jpg").unlink()
    with pytest.warns(UserWarning, match=r"1 of 3 files are not there, the first is .*/a/1\.jpg'; reading them raises"):
        source = open_source(ROWS, root=tree)
    assert len(source) == 3
    assert source.read(0) == b"b/3.jpg"
    with pytest.raises(LoaderError, match=r"E-MISSING\] sample=1 path="):
        source.read(1)
    (tree / "a/1.jpg").write_bytes(b"late")
    with pytest.raises(LoaderError, match=r"E-CHANGED\] sample=1"):
        source.read(1)


@pytest.mark.filterwarnings("ignore:1 of 12 files are not there")
@pytest.mark.parametrize("decoder", ["native", "simplejpeg"])
def test_a_missing_file_is_replaced_or_raised(tmp_path: Path, decoder: str) -> None:
    rows = [(path, path.parent.name) for path in sorted(write_folder(tmp_path / "photos", 12).rglob("*.jpg"))]
    rows[5] = (tmp_path / "none.jpg", "class0")
    settings = {"shuffle": False, "batch_size": 6, "workers": 0, "decoder": decoder}
    with (
        create_loader(rows, **settings) as loader,
        pytest.raises(LoaderError, match=r"E-MISSING\] sample=5 path=.*none"),
    ):
        list(loader)
    with create_loader(rows, on_bad_sample="replace", **settings) as loader:
        served = [batch.index.tolist() for batch in loader.batches()]
        assert served == [[0, 1, 2, 3, 4, 6], [6, 7, 8, 9, 10, 11]]
        assert [(bad.sample, bad.code) for bad in loader.ledger().bad] == [(5, "E-MISSING")]


def test_a_file_that_is_too_large_is_refused(tree: Path) -> None:
    source = open_source(ROWS, root=tree, max_file_bytes=6)
    with pytest.raises(LoaderError, match=r"E-BOMB\] sample=1"):
        source.read(1)
    assert open_source(ROWS, root=tree, max_file_bytes=7).read(1) == b"a/1.jpg"


@pytest.mark.parametrize("labelled", [True, False])
def test_a_list_is_refreshed(tree: Path, labelled: bool) -> None:
    source = open_source(ROWS if labelled else [name for name, _ in ROWS], root=tree)
    assert isinstance(source, IndexedSource)
    assert source.refreshed() is source
    os.utime(tree / "a/1.jpg", (7, 7))
    again = source.refreshed()
    assert again.fingerprint == source.fingerprint
    assert again.content != source.content
    assert again.read(1) == b"a/1.jpg"
    assert again.labels(np.arange(3)).tolist() == source.labels(np.arange(3)).tolist()
    assert again.classes == source.classes
    (tree / "a/1.jpg").unlink()
    with pytest.warns(UserWarning, match="1 of 3 files"):
        assert again.refreshed().fingerprint != source.fingerprint
