"""Caches with fields: served from the file alone, checked, stale after a field changes, and shared by parts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photo_fields import PhotoFields
from stored_images import has_images_of

from penstock.loaders import LoaderError, Masks, concat, create_loader, open_source, split, with_fields
from penstock.loaders.cache_build.build import build_cache
from penstock.loaders.cache_build.unfinished import BuildFolder
from penstock.loaders.cache_build.verify import verify_cache
from penstock.loaders.data.cache.format import Encoding
from penstock.loaders.data.cache.hdf5_cache import open_cache
from penstock.loaders.data.sources.contract import has_fields
from penstock.pipelines import imagenet_eval, imagenet_train

pytestmark = pytest.mark.filterwarnings("ignore:crop=")  # photos and sharp images are resized
NUM_PHOTOS = 13
ENGINES: dict[str, dict[str, Any]] = {
    "hdf5": {"backend": "hdf5", "workers": 2},
    "hdf5 processes": {"backend": "hdf5", "workers": 2, "workers_are": "processes", "decoder": "simplejpeg"},
    "torch": {"workers": 2},
    "dali": {"backend": "dali", "workers": 1},
}


@pytest.fixture
def data(tmp_path: Path) -> PhotoFields:
    return PhotoFields(tmp_path / "data", NUM_PHOTOS)


def batches(source: Any, **settings: Any) -> list[Any]:
    defaults = {"pipeline": imagenet_train((24, 20)), "batch_size": 4, "dtype": torch.uint8, "drop_last": False}
    with create_loader(source, **{**defaults, **settings}) as loader:
        return list(loader.batches())


@pytest.mark.parametrize("encoding", [Encoding(), Encoding(kind="raw")])
def test_a_cache_serves_its_fields_without_their_files(data: PhotoFields, tmp_path: Path, encoding: Encoding) -> None:
    build_cache(data.source(), tmp_path / "one.h5", encoding, workers=0)
    build_cache(data.source(), tmp_path / "set", encoding, workers=0, shards=3)
    shutil.rmtree(data.root)
    first = batches(str(tmp_path / "one.h5"), backend="hdf5", workers=0)
    for settings in ENGINES.values():
        found = batches(str(tmp_path / "set"), **settings)
        for batch, other in zip(found, first, strict=True):
            data.check(batch)
            data.check(other)
            assert batch.index.tolist() == other.index.tolist()
            assert torch.equal(batch.fields["mask"], other.fields["mask"])
    assert verify_cache(open_cache(tmp_path / "set")).sound


def test_stored_masks_equal_the_files(data: PhotoFields, tmp_path: Path) -> None:
    source = data.source()
    build_cache(source, tmp_path / "set", workers=2, shards=2)
    cache = open_cache(tmp_path / "set")
    assert list(cache.field_kinds.items()) == list(source.field_kinds.items())  # type: ignore[attr-defined]
    for index in range(NUM_PHOTOS):
        assert cache.mask("mask", index) == source.mask("mask", index)  # type: ignore[attr-defined]
    assert "with mask, boxes, keypoints, name, about, depth, sharp" in cache.describe()
    assert has_images_of(cache, source)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_masks_of_arrays_keep_their_values(tmp_path: Path, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    masks = np.random.default_rng(0).integers(limits.min, limits.max, (4, 9, 7), endpoint=True).astype(dtype)
    images = np.zeros((4, 9, 7, 3), np.uint8)
    source = with_fields((images, np.arange(4)), mask=Masks(masks, dtype=dtype), about=[None, 1, "a", {"b": [2.5]}])
    build_cache(source, tmp_path / "a.h5", workers=0)
    pipeline = imagenet_eval((9, 7), center_fraction=1.0)
    (batch,) = batches(str(tmp_path / "a.h5"), backend="hdf5", workers=0, pipeline=pipeline)
    assert np.array_equal(batch.fields["mask"].numpy(), masks)
    assert batch.fields["about"] == [None, 1, "a", {"b": [2.5]}]


def test_a_source_without_fields_makes_a_cache_of_the_first_version(data: PhotoFields, tmp_path: Path) -> None:
    build_cache(open_source(data.photos), tmp_path / "v1.h5", workers=0)
    cache = open_cache(tmp_path / "v1.h5")
    assert (cache.about[0].schema, b'"fields":' in cache.about[0].pack(), has_fields(cache)) == (1, False, False)
    for batch in batches(data.source(), backend="hdf5", workers=0, cache=tmp_path / "v1.h5"):
        data.check(batch)  # the fields are read from the source
    with pytest.raises(LoaderError, match="it contains no fields, but the source has mask, boxes") as raised:
        batches(concat([data.source()] * 2), backend="hdf5", workers=0, cache=tmp_path / "v1.h5")
    assert raised.value.code == "E-STALE"


def test_parts_share_a_cache_of_fields(data: PhotoFields, tmp_path: Path) -> None:
    cache = tmp_path / "shared.h5"
    for part in split(data.source(), 0.6, seed=1):
        order = part.indices.astype(int)  # type: ignore[attr-defined]
        for batch in batches(part, backend="hdf5", workers=0, cache=cache):
            data.check(batch, order[batch.index].tolist())
    assert len(open_cache(cache)) == NUM_PHOTOS
    joined = tmp_path / "joined.h5"
    for batch in batches(concat([data.source()] * 2), backend="hdf5", workers=0, cache=joined):
        data.check(batch, (batch.index % NUM_PHOTOS).tolist())
    assert has_fields(open_cache(joined))


@pytest.mark.parametrize("change", ["mask", "box", "text", "fewer"])
def test_a_changed_field_makes_the_cache_stale(data: PhotoFields, tmp_path: Path, change: str) -> None:
    settings = {"backend": "hdf5", "workers": 0, "cache": tmp_path / "a.h5"}
    batches(data.source(), **settings)
    batches(data.source(), **settings)
    cause, source = "images, fields, sizes or classes of the source have changed", data.source()
    if change == "mask":
        path = data.root / "masks" / data.names[3].with_suffix(".png")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))
        cause = "files of the source were modified"
    elif change == "box":
        data.boxes[1] = data.boxes[1] / 2
        source = data.source()
    elif change == "text":
        source = with_fields(source, name=["x"] * NUM_PHOTOS)
    else:
        source, cause = (
            with_fields(data.photos, name=["x"] * NUM_PHOTOS),
            "it contains mask, boxes, keypoints, name, about, depth, sharp",
        )
    with pytest.raises(LoaderError, match=cause) as raised:
        batches(source, **settings)
    assert raised.value.code == "E-STALE"
    build_cache(source, tmp_path / "a.h5", workers=0, replace_stale=True)
    assert batches(source, **settings)


def test_damaged_fields_are_never_served(data: PhotoFields, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    build_cache(data.source(), path, workers=0)
    whole, mask = path.read_bytes(), open_cache(path).mask("mask", 5)
    at = whole.index(mask) + len(mask) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(LoaderError, match=r"the CRC of .* stored bytes differs") as raised:
        batches(str(path), backend="hdf5", workers=0)
    assert (raised.value.code, raised.value.sample) == ("E-CACHE", 5)
    (damaged,) = verify_cache(open_cache(path)).damaged
    assert damaged[0] == 5
    at = whole.index(np.float32(data.boxes[1]).tobytes())
    for damage in (whole[:at] + bytes(4) + whole[at + 4 :], whole[: len(whole) * 2 // 3]):
        path.write_bytes(damage)
        with pytest.raises(LoaderError) as raised:
            open_cache(path)
        assert raised.value.code == "E-CACHE"


def test_a_stopped_build_resumes_with_its_masks(
    data: PhotoFields, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_cache(data.source(), tmp_path / "whole.h5", workers=0)
    appended = BuildFolder.append

    def stop(self: BuildFolder, chunk: Any) -> None:
        if self.num_samples >= 4:
            raise KeyboardInterrupt
        appended(self, chunk)

    with monkeypatch.context() as patch:
        patch.setattr(BuildFolder, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            build_cache(data.source(), tmp_path / "a.h5", workers=0)
    (built,) = build_cache(data.source(), tmp_path / "a.h5", workers=0).files
    assert built.resumed >= 4
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_fields_that_would_not_fit_resized_images_are_refused(data: PhotoFields, tmp_path: Path) -> None:
    small = Encoding(resize=16)
    with pytest.raises(
        ValueError, match="but not mask, boxes, keypoints, depth, sharp: use an Encoding without resize"
    ):
        build_cache(data.source(), tmp_path / "a.h5", small, workers=0)
    build_cache(open_source(data.photos), tmp_path / "v1.h5", small, workers=0)
    with pytest.raises(ValueError, match="resizes the images but not"):
        batches(data.source(), backend="hdf5", workers=0, cache=tmp_path / "v1.h5", encoding=small)
    texts = with_fields(data.photos, name=list(map(str, data.names)))
    (batch,) = batches(texts, backend="hdf5", workers=0, cache=tmp_path / "t.h5", encoding=small, batch_size=NUM_PHOTOS)
    assert batch.fields["name"] == [str(data.names[index]) for index in batch.index.tolist()]
