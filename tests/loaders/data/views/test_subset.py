"""Parts of a source: samples, names, and transfer to other processes."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_folder import photo, write_folder
from stored_images import has_images_of

from penstock.loaders import create_loader, open_source
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.files.arrays import ArraySource
from penstock.loaders.data.sources.contract import Source, is_cache, is_located
from penstock.loaders.data.sources.data import Data, as_data
from penstock.loaders.data.views.subset import limit_per_class
from penstock.loaders.front.loader import Loader
from penstock.pipelines import imagenet_train
from penstock.pipelines.errors import LoaderError

NUM_PHOTOS = 20


def numbered_images(labels: list[int]) -> ArraySource:
    """Return images; the first value of each is its index."""
    images = np.zeros((len(labels), 4, 4, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(labels))
    return ArraySource(images, labels)


def test_a_subset_serves_its_samples_in_its_order(photos: Path) -> None:
    whole = open_source(photos)
    part = open_source(photos, subset=[7, 3, 19])
    assert isinstance(part, Source)
    assert is_located(part)
    assert not is_cache(part)
    assert [part.read(i) for i in range(3)] == [whole.read(i) for i in (7, 3, 19)]
    assert part.labels(np.arange(3)).tolist() == whole.labels(np.array([7, 3, 19])).tolist()
    assert part.path(1) == whole.path(3)
    assert part.name(1) == os.path.relpath(whole.path(3), os.fsencode(photos))  # type: ignore[attr-defined]
    assert part.describe() == f"3 of {whole.describe()}"
    assert part.describe().startswith("3 of 20 images, 3 classes")
    assert part.classes == whole.classes


def test_indices_use_four_bytes_where_they_fit() -> None:
    class Huge(ArraySource):
        def __len__(self) -> int:
            return self.count

    source = numbered_images([0])
    assert as_data(source).take(np.array([0])).indices.dtype == np.int32
    huge = Huge(np.zeros((1, 4, 4, 3), np.uint8), [0])
    huge.count = 1 << 31  # type: ignore[attr-defined]
    assert as_data(huge).take(np.array([(1 << 31) - 1])).indices.tolist() == [(1 << 31) - 1]
    huge.count += 1  # type: ignore[attr-defined]
    assert as_data(huge).take(np.array([1 << 31])).indices.tolist() == [1 << 31]


def test_a_subset_of_a_subset_refers_to_the_source() -> None:
    source = numbered_images([0] * 20)
    nested = open_source(open_source(source, subset="5:15"), subset=[1, 4])
    direct = as_data(source).take(np.array([6, 9]))
    assert isinstance(nested, Data)
    assert nested.parts == (source,)
    assert nested.fingerprint == direct.fingerprint
    assert [int(nested.read(i)[0, 0, 0]) for i in range(2)] == [6, 9]


def test_parts_of_a_source_that_holds_the_interpreter_lock_hold_it_too() -> None:
    class Holding(ArraySource):
        holds_interpreter_lock = True

    part: Any = open_source(Holding(np.zeros((3, 4, 4, 3), np.uint8), [0, 1, 2]), subset=[0, 2])
    assert part.holds_interpreter_lock
    assert not open_source(numbered_images([0, 1]), subset=[0]).holds_interpreter_lock  # type: ignore[attr-defined]


def test_the_fingerprint_depends_on_data_and_indices() -> None:
    source, other = numbered_images([0] * 20), numbered_images([0] * 19 + [1])
    parts = [
        as_data(source).take(np.array([1, 2])),
        as_data(source).take(np.array([2, 1])),
        as_data(source).take(np.array([1, 2, 3])),
        as_data(other).take(np.array([1, 2])),
    ]
    assert len({part.fingerprint for part in [*parts, source]}) == 5
    assert as_data(source).take(np.array([1, 2], np.int32)).fingerprint == parts[0].fingerprint


def test_an_empty_part_is_an_error(photos: Path) -> None:
    for spec in ("15:10", [], np.zeros(20, bool), ":0"):
        with pytest.raises(LoaderError, match=r"E-NODATA.*none of the 20 samples"):
            open_source(photos, subset=spec)


# ---- whole classes left out ----


def test_a_slice_of_sorted_classes_warns_about_classes_left_out(photos: Path) -> None:
    with pytest.warns(UserWarning, match=r"leaves out 1 of 3 classes.*split\(source, 0.9, by_class=True\)") as caught:
        open_source(photos, subset=":0.5")
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    with pytest.warns(UserWarning, match="leaves out 2 of 3"):
        create_loader(photos, subset=slice(-3, None), batch_size=1, workers=0).close()


def test_subsets_with_all_classes_or_of_chosen_samples_do_not_warn(photos: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for spec in (":0.9", "::4", [0, 1], np.arange(20) < 2):
            open_source(photos, subset=spec)
        assert len(open_source(numbered_images([1, 0, 2, 0, 1]), subset=":2")) == 2  # classes are not sorted: no trap


# ---- limits ----


def test_max_per_class_keeps_the_order_of_the_source() -> None:
    dice = np.random.default_rng(3)
    for _ in range(30):
        labels = dice.integers(0, 5, 60)
        source, most = numbered_images(labels.tolist()), int(dice.integers(1, 15))
        part = limit_per_class(source, most)
        counts = np.bincount(labels, minlength=5)
        assert np.bincount(part.labels(np.arange(len(part))), minlength=5).tolist() == counts.clip(0, most).tolist()
        kept = [int(part.read(i)[0, 0, 0]) for i in range(len(part))]
        assert kept == sorted(kept)
        fewer = limit_per_class(source, max(1, most - 1))
        assert {int(fewer.read(i)[0, 0, 0]) for i in range(len(fewer))} <= set(kept)


def test_max_per_class_chooses_each_class_independently() -> None:
    labels = np.arange(60) % 4
    one = limit_per_class(numbered_images(labels.tolist()), 5)
    two = limit_per_class(numbered_images(np.where(labels == 2, 2, labels % 2).tolist()), 5)
    of_class = [
        {int(part.read(i)[0, 0, 0]) for i in range(len(part)) if part.labels(np.array([i]))[0] == 2}
        for part in (one, two)
    ]
    assert of_class[0] == of_class[1]
    assert len(of_class[0]) == 5
    assert of_class[0] != set(range(2, 22, 4))  # not simply the first samples


def test_max_per_class_applies_to_the_subset_and_chooses_by_the_index_in_the_whole_source() -> None:
    source = numbered_images([0] * 40 + [1] * 40)
    part = open_source(source, subset="20:60", max_per_class=8)
    assert isinstance(part, Data)
    assert np.bincount(part.labels(np.arange(16))).tolist() == [8, 8]
    assert part.indices.min() >= 20
    # samples of a part that are chosen in the whole are also chosen in the part
    whole = set(limit_per_class(source, 8).indices.tolist())  # type: ignore[attr-defined]
    assert {i for i in whole if 20 <= i < 60} <= set(part.indices.tolist())
    assert open_source(source, max_per_class=40) is source
    for wrong in (0, -1, 2.5, True, "3"):
        with pytest.raises(ValueError, match="max_per_class must be"):
            open_source(source, max_per_class=wrong)  # type: ignore[arg-type]


# ---- caches ----


def test_two_parts_share_one_cache_of_the_whole(photos: Path, tmp_path: Path) -> None:
    cache = tmp_path / "all.h5"
    parts = [open_source(photos, subset=np.arange(20) % 2 == odd) for odd in (0, 1)]
    stamps, seen = [], []
    for part in parts:
        settings: dict[str, Any] = {"batch_size": 5, "workers": 0, "pipeline": imagenet_train(16)}
        with create_loader(part, backend="hdf5", cache=cache, **settings) as loader:
            seen += [int(i) for batch in loader.batches() for i in batch.index]
            assert loader.dataset.targets == part.labels(np.arange(10)).tolist()
            fingerprint = loader.state_dict()["fingerprint"]
        assert fingerprint == part.fingerprint  # the cache is lossless
        stamps.append((cache.stat().st_ino, cache.stat().st_mtime_ns))
    assert sorted(seen) == sorted([*range(10)] * 2)
    assert stamps[0] == stamps[1]
    assert len(open_cache(cache)) == 20
    with create_loader(cache, backend="hdf5", subset=np.arange(20) % 2 == 1, batch_size=5, workers=0) as loader:
        assert loader.state_dict()["fingerprint"] == parts[1].fingerprint


def test_a_cache_of_a_subset_serves_its_samples(photos: Path, tmp_path: Path) -> None:
    part = open_source(photos, subset=[7, 3, 19])
    build_cache(part, tmp_path / "part.h5", workers=0)
    cache = open_cache(tmp_path / "part.h5")
    assert [cache.name(i) for i in range(3)] == [part.name(i) for i in range(3)]  # type: ignore[attr-defined]
    assert cache.labels(np.arange(3)).tolist() == part.labels(np.arange(3)).tolist()
    assert cache.fingerprint == part.fingerprint
    assert has_images_of(cache, part)
    with pytest.raises(LoaderError, match=r"E-MISUSE.*the folder of its images"):
        build_cache(part, photos / "part.h5", workers=0)


def test_a_subset_of_changed_files_is_refused_and_one_of_touched_files_is_not(tmp_path: Path) -> None:
    part = open_source(write_folder(tmp_path / "photos", 6), subset=[0, 5])
    build_cache(part, tmp_path / "part.h5", workers=0)
    os.utime(part.path(1), ns=(1, 1))
    touched = part.refreshed()  # type: ignore[attr-defined]
    assert touched.fingerprint == part.fingerprint
    assert touched.content != part.content  # type: ignore[attr-defined]
    assert touched.read(1) == photo(5)
    with pytest.raises(LoaderError, match=r"E-STALE.*modified"):
        build_cache(touched, tmp_path / "part.h5", workers=0)
    (tmp_path / "photos" / "class0" / "9999.jpg").write_bytes(photo(1))
    with pytest.raises(LoaderError, match=r"E-CHANGED.*added, removed or changed"):
        build_cache(part, tmp_path / "other.h5", workers=0)


def test_a_resume_refuses_a_part_of_another_size_or_with_other_samples(photos: Path) -> None:
    def open_loader(subset: Any) -> Loader:
        return create_loader(photos, subset=subset, pipeline=imagenet_train(16), batch_size=4, workers=0)

    with open_loader("::2") as loader:
        next(loader.batches())
        state = loader.state_dict()
    for subset, message in (("3::2", "now 9"), (range(3, 20, 2), "now 9"), ([*range(1, 19, 2), 0], "other images")):
        with open_loader(subset) as loader, pytest.raises(LoaderError, match=f"E-STATE.*{message}"):
            loader.load_state_dict(state)
    with open_loader(list(range(0, 20, 2))) as loader:  # the same samples, specified differently
        loader.load_state_dict(state)
        assert loader.state_dict() == state
