"""IndexedSource: rows are read in their order, missing files stay and are named, refreshing sees every change."""

from __future__ import annotations

from pathlib import Path

import pytest
from folder_trees import plant, settle
from photo_folder import write_folder

from penstock.loaders import create_loader
from penstock.loaders.front.open_source import open_source
from penstock.pipelines.errors import LoaderError

ROWS = [("b/3.jpg", "y"), ("a/1.jpg", "x"), ("b/3.jpg", "x")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return settle(plant(tmp_path / "tree", ["a/1.jpg", "b/3.jpg"]))


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
